"""Strongly connected components and short paths of a directed graph whose nodes are numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeAlias, TypeVar

Label = TypeVar("Label")


class Edge(NamedTuple, Generic[Label]):
    """An edge to a node, and what it stands for."""

    target: int
    label: Label


# The edges from each node, by the node's number.
Graph: TypeAlias = Sequence[Sequence[Edge[Label]]]


class Step(NamedTuple, Generic[Label]):
    """A step of a path: from a node along an edge."""

    source: int
    edge: Edge[Label]


def components(graph: Graph[Label]) -> list[list[int]]:
    """Return the strongly connected components of two nodes or more, in linear time.

    (Tarjan, 1972, with a stack of its own: histories are longer than Python's stack is deep.)
    """
    search = _Search()
    for root in range(len(graph)):
        if root not in search.index:
            _visit(graph, root, search)
    return search.found


@dataclass(slots=True)
class _Search:
    index: dict[int, int] = field(default_factory=dict)
    lowest: dict[int, int] = field(default_factory=dict)
    stack: list[int] = field(default_factory=list)
    on_stack: set[int] = field(default_factory=set)
    found: list[list[int]] = field(default_factory=list)

    def enter(self, node: int) -> None:
        self.index[node] = self.lowest[node] = len(self.index)
        self.stack.append(node)
        self.on_stack.add(node)

    def leave(self, node: int) -> None:
        """Take a component off the stack if `node` is the first one that was entered of it."""
        if self.lowest[node] != self.index[node]:
            return
        component: list[int] = []
        while not component or component[-1] != node:
            component.append(self.stack.pop())
        self.on_stack.difference_update(component)
        if len(component) > 1:
            self.found.append(component)


def _visit(graph: Graph[Label], root: int, search: _Search) -> None:
    search.enter(root)
    path = [(root, iter(graph[root]))]
    while path:
        node, edges = path[-1]
        for edge in edges:
            if edge.target not in search.index:
                search.enter(edge.target)
                path.append((edge.target, iter(graph[edge.target])))
                break
            if edge.target in search.on_stack:
                search.lowest[node] = min(search.lowest[node], search.index[edge.target])
        else:
            path.pop()
            search.leave(node)
            if path:
                parent = path[-1][0]
                search.lowest[parent] = min(search.lowest[parent], search.lowest[node])


def shortest_path(
    graph: Graph[Label], start: int, goal: int, free_from: int
) -> list[Step[Label]] | None:
    """Return a path of at least one step from `start` to `goal`, or None if there is none.

    It passes as few nodes as possible; those with numbers from `free_from` on do not count.
    """
    came: dict[int, Step[Label]] = {}
    waiting = deque(Step(start, edge) for edge in graph[start])
    while waiting:
        step = waiting.popleft()
        node = step.edge.target
        if node in came:
            continue
        came[node] = step
        if node == goal:
            return _walked(came, start, goal)
        for edge in graph[node]:
            if edge.target >= free_from:
                waiting.appendleft(Step(node, edge))
            else:
                waiting.append(Step(node, edge))
    return None


def _walked(came: dict[int, Step[Label]], start: int, goal: int) -> list[Step[Label]]:
    path = [came[goal]]
    while path[-1].source != start:
        path.append(came[path[-1].source])
    return path[::-1]
