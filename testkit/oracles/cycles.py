"""Judges transactions over several keys by cycles of what each must have come before.

A history is strictly serializable only if no transaction comes before itself. One comes before
another if it wrote the version that the other replaced (ww) or read (wr), if it read the version
that the other replaced (rw), or if it had returned before the other was called (time). With known
orders of versions each cycle of these is an anomaly, and its edges say which (Adya, 1999; Kingsbury
and Alvaro, "Elle", 2020). The cost is linear in the history, unless there are cycles.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Final, NamedTuple

from testkit.oracles.components import Edge, Graph, Step, components, shortest_path
from testkit.oracles.transactions import (
    Transaction,
    TransactionOutcome,
    VersionOrders,
    Written,
    version_orders,
)

# So many edges are tried for the smallest cycle of a component; the first cycle found is one, too.
STARTS_MAX: Final = 100
# Of a longer cycle only the first transactions are told.
STEPS_TOLD_MAX: Final = 12
# A component may have thousands of cycles: one is told of each.
ANOMALIES_MAX: Final = 20


class DependencyKind(Enum):
    """Why a transaction comes before another one."""

    WRITE_WRITE = "ww"
    WRITE_READ = "wr"
    READ_WRITE = "rw"
    TIME = "time"


class Dependency(NamedTuple):
    """A reason for an edge: its kind, and the versions of a key that it is about."""

    kind: DependencyKind
    key: str = ""
    version: str = ""
    next_version: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """An anomaly: the edges of its cycles, and whether exactly one of them is rw."""

    name: str
    kinds: frozenset[DependencyKind]
    has_one_read_write: bool = False


_WW, _WR, _RW, _TIME = DependencyKind
_PLAIN: Final = (
    Level("G0", frozenset({_WW})),
    Level("G1c", frozenset({_WW, _WR})),
    Level("G-single", frozenset({_WW, _WR, _RW}), has_one_read_write=True),
    Level("G2", frozenset({_WW, _WR, _RW})),
)
# The gravest first: what breaks a weaker promise is told before what breaks a stronger one.
LEVELS: Final = (
    *_PLAIN,
    *(
        Level(f"{level.name}-realtime", level.kinds | {_TIME}, level.has_one_read_write)
        for level in _PLAIN
    ),
)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A cycle: each transaction with the reason why it comes before the next one."""

    steps: tuple[tuple[Transaction, Dependency], ...]

    @property
    def name(self) -> str:
        """What this kind of cycle is called."""
        kinds = [dependency.kind for _, dependency in self.steps]
        return next(
            level.name
            for level in LEVELS
            if level.kinds.issuperset(kinds)
            and not (level.has_one_read_write and kinds.count(_RW) != 1)
        )

    def __str__(self) -> str:
        count = len(self.steps)
        lines = [f"{self.name}: {count} transactions in a cycle"]
        told = list(enumerate(self.steps, 1))[:STEPS_TOLD_MAX]
        lines += [f"  T{number}: {each}" for number, (each, _) in told]
        lines += [
            f"  {_sentence(number, number % count + 1, dependency)}"
            for number, (_, dependency) in told
        ]
        return "\n".join(lines)


def anomalies(transactions: Iterable[Transaction]) -> list[Anomaly]:
    """Return the smallest cycle of the gravest kind of each component; none if there is none.

    If another cycle of the component is smaller, which is easier to understand, it comes next.
    """
    history = [each for each in transactions if each.outcome is not TransactionOutcome.ABORTED]
    graph = _graph(history)
    found = []
    for component in components(graph)[:ANOMALIES_MAX]:
        search = _CycleSearch(history, graph, frozenset(component))
        gravest, smallest = search.gravest(), search.smallest(LEVELS[-1])
        found.append(Anomaly(_told(gravest, history)))
        if smallest is not None and search.size(smallest) < search.size(gravest):
            found.append(Anomaly(_told(smallest, history)))
    return found


def _graph(history: Sequence[Transaction]) -> list[list[Edge[Dependency]]]:
    """Return the edges; nodes behind those of the transactions stand for moments."""
    orders = version_orders(history)
    numbers = {each: number for number, each in enumerate(history)}
    graph: list[list[Edge[Dependency]]] = [[] for _ in history]
    _add_writes(graph, numbers, orders)
    _add_reads(graph, numbers, orders)
    _add_time(graph, history)
    return graph


def _add_writes(
    graph: list[list[Edge[Dependency]]], numbers: dict[Transaction, int], orders: VersionOrders
) -> None:
    for key, versions in orders.orders.items():
        for version, replacing in pairwise(versions):
            source = orders.writers.get(Written(key, version))
            target = orders.writers.get(Written(key, replacing))
            if source is not None and target is not None and source is not target:
                label = Dependency(_WW, key, version, replacing)
                graph[numbers[source]].append(Edge(numbers[target], label))


def _add_reads(
    graph: list[list[Edge[Dependency]]], numbers: dict[Transaction, int], orders: VersionOrders
) -> None:
    places = {
        Written(key, version): place
        for key, versions in orders.orders.items()
        for place, version in enumerate(versions)
    }
    for reader, number in numbers.items():
        for key, version in _last_read(reader):
            writer = orders.writers.get(Written(key, version))
            if writer is not None and writer is not reader:
                label = Dependency(_WR, key, version)
                graph[numbers[writer]].append(Edge(number, label))
            versions = orders.orders.get(key, ())
            following = places.get(Written(key, version), -1) + 1
            if following == len(versions):
                continue
            replacing = orders.writers.get(Written(key, versions[following]))
            if replacing is not None and replacing is not reader:
                label = Dependency(_RW, key, version, versions[following])
                graph[number].append(Edge(numbers[replacing], label))


def _last_read(reader: Transaction) -> Iterable[Written]:
    """Yield the last version of each key that a transaction saw; "" stands for an empty list."""
    for key, version, _ in reader.reads:
        yield Written(key, version)
    for key, versions in reader.lists:
        yield Written(key, versions[-1][0] if versions else "")


def _add_time(graph: list[list[Edge[Dependency]]], history: Sequence[Transaction]) -> None:
    """Add a chain of moments, one for each return: so there are few edges, not one per pair."""
    returned = sorted(
        (each.returned_at, number)
        for number, each in enumerate(history)
        if each.returned_at is not None
    )
    label, first = Dependency(_TIME), len(history)
    for place, (_, number) in enumerate(returned):
        graph.append([Edge(first + place + 1, label)] if place + 1 < len(returned) else [])
        graph[number].append(Edge(first + place, label))
    times = [at for at, _ in returned]
    for number, each in enumerate(history):
        before = bisect_left(times, each.called_at) - 1
        if each.is_current and before >= 0:
            graph[first + before].append(Edge(number, label))


@dataclass(frozen=True, slots=True)
class _CycleSearch:
    """Looks for cycles in one component of a graph."""

    history: Sequence[Transaction]
    graph: Graph[Dependency]
    component: frozenset[int]

    def gravest(self) -> list[Step[Dependency]]:
        """Return the smallest cycle of the gravest kind."""
        for level in LEVELS:
            cycle = self.smallest(level)
            if cycle is not None:
                return cycle
        raise AssertionError("a component without a cycle")

    def smallest(self, level: Level) -> list[Step[Dependency]] | None:
        """Return the smallest cycle with edges of a level, or None if there is none."""
        part = self._part(level.kinds)
        paths = self._part(level.kinds - {_RW}) if level.has_one_read_write else part
        inside = {node for each in components(part) for node in each}
        closing = [
            Step(node, edge)
            for node in sorted(inside)
            for edge in part[node]
            if edge.target in inside and (edge.label.kind is _RW or not level.has_one_read_write)
        ]
        found = []
        for step in sorted(closing, key=self._span)[:STARTS_MAX]:
            path = shortest_path(paths, step.edge.target, step.source, len(self.history))
            if path is not None:
                found.append([step, *path])
        return min(found, key=self.size, default=None)

    def size(self, cycle: Sequence[Step[Dependency]]) -> int:
        """Return how many transactions a cycle has."""
        return sum(step.source < len(self.history) for step in cycle)

    def _part(self, kinds: frozenset[DependencyKind]) -> Graph[Dependency]:
        return [
            [e for e in edges if e.target in self.component and e.label.kind in kinds]
            if node in self.component
            else []
            for node, edges in enumerate(self.graph)
        ]

    def _span(self, step: Step[Dependency]) -> int:
        """Return how far an edge leads ahead in time: one that leads back closes a cycle."""
        ends = (step.source, step.edge.target)
        if max(ends) >= len(self.history):
            return 0
        source, target = (self.history[node].called_at for node in ends)
        return target - source


def _told(
    cycle: Sequence[Step[Dependency]], history: Sequence[Transaction]
) -> tuple[tuple[Transaction, Dependency], ...]:
    """Leave out the moments: what leads from one through others to a transaction is time."""
    return tuple(
        (history[step.source], step.edge.label) for step in cycle if step.source < len(history)
    )


def _sentence(number: int, following: int, dependency: Dependency) -> str:
    key, version = dependency.key, dependency.version or "nothing"
    reason = {
        _WW: f"T{following} replaced {key} = {version}, which T{number} wrote",
        _WR: f"T{following} read {key} = {version}, which T{number} wrote",
        _RW: f"T{number} read {key} = {version}, which T{following} replaced",
        _TIME: f"T{number} had returned before T{following} was called",
    }[dependency.kind]
    return f"T{number} comes before T{following}: {reason}"
