"""What is below a place of the tree, found by name or by expression.

A search walks the folders in the order of their keys and enters only those that can hold what it
looks for. So its cost grows with the kinds on the way, and it holds one entity of each level.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from viewstamp.format.columns import row_of
from viewstamp.snapshots.explore.expression_kinds import ExpressionKind
from viewstamp.snapshots.explore.expressions import Choice
from viewstamp.snapshots.explore.path_parts import name_of
from viewstamp.snapshots.explore.state_tree import (
    TOP,
    EntityFolder,
    EntityNode,
    FolderShape,
    KindFolder,
    PartitionNode,
    PartitionsFolder,
    SectionsFolder,
    StateNode,
)


def named_like(start: StateNode, pattern: str) -> Iterator[StateNode]:
    """Yield the entities below a place whose names a glob fits. Raises SnapshotFilesError.

    Entities that only have numbers, and sections, are looked at if the search starts there.
    """
    for node in _below(start, _has_names):
        if node.kind and (
            fnmatchcase(node.part, pattern) or fnmatchcase(name_of(node.part), pattern)
        ):
            yield node


def chosen_below(start: StateNode, choice: Choice) -> Iterator[StateNode]:
    """Yield the entities below a place that an expression chooses. Raises SnapshotFilesError."""
    for node in _below(start, lambda node: _leads_to(node, choice.kind)):
        if node.kind == choice.kind.name and _is_chosen(node, choice):
            yield node


def _below(start: StateNode, enters: Callable[[StateNode], bool]) -> Iterator[StateNode]:
    for node in start.children():
        yield node
        if node.has_children and enters(node) and not _is_empty(node):
            yield from _below(node, enters)


def _is_empty(node: StateNode) -> bool:
    """Whether the manifest alone tells that nothing is in a folder."""
    if not isinstance(node, EntityFolder):
        return False
    return not node.generation.count_of(node.shape.stage, node.shape.number)


def _has_names(node: StateNode) -> bool:
    if isinstance(node, EntityFolder):
        return bool(node.shape.name) and not isinstance(node, KindFolder)
    return not isinstance(node, PartitionsFolder | SectionsFolder)


def _leads_to(node: StateNode, kind: ExpressionKind) -> bool:
    if isinstance(node, KindFolder):
        return _is_of(node.shape, kind) and not kind.is_partition
    if isinstance(node, EntityFolder):
        return _has_inside(node.shape, kind)
    if isinstance(node, EntityNode):
        return any(_has_inside(shape, kind) for shape in node.shape.inside) or _has_row(node, kind)
    if isinstance(node, SectionsFolder):
        return not any(_has_inside(shape, kind) for shape in TOP)
    return kind.is_partition or not isinstance(node, PartitionsFolder)


def _has_inside(shape: FolderShape, kind: ExpressionKind) -> bool:
    if kind.is_partition:
        is_here = shape.has_partitions
    else:
        is_here = _is_of(shape, kind)
    return is_here or any(_has_inside(one, kind) for one in shape.inside)


def _has_row(node: EntityNode, kind: ExpressionKind) -> bool:
    return kind.is_partition and node.shape.has_partitions


def _is_of(shape: FolderShape, kind: ExpressionKind) -> bool:
    return (shape.stage, shape.number) == (kind.stage, kind.number)


def _is_chosen(node: StateNode, choice: Choice) -> bool:
    if choice.predicate is None:
        return True
    if isinstance(node, PartitionNode):
        return choice.predicate(node.row)
    assert isinstance(node, EntityNode), "only entities and partitions have a kind"
    return choice.predicate(row_of(node.entity.message))
