"""A section as a chain of layers: cut into key ranges, merged, and compared with an earlier state.

A range of keys is read from every layer of the chain, so a merge of the range sees every entry in
it: later layers win, and a tombstone removes the entry of earlier layers.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from analytics.snapshots.errors import SnapshotError
from analytics.snapshots.layers import CopiedLayer, KeyRange, Wanted
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format import FormatError
from viewstamp.format.layer import BlockLocation
from viewstamp.format.manifest import section_of
from viewstamp.format.merge import merge
from viewstamp.format.section import Change, SectionEntry


class Chain(NamedTuple):
    """The source of a section's state: a manifest and the layers that it names."""

    manifest: SnapshotManifest
    stage: int
    layers: Sequence[LayerReference]


def chain_of(manifest: SnapshotManifest, stage: int) -> Chain:
    """Return the chain of a section."""
    return Chain(manifest, stage, list(section_of(manifest, stage).layers))


@contextmanager
def opened(directories: Sequence[Path], chain: Chain) -> Iterator[list[CopiedLayer]]:
    """Open the layers of a chain, base first. Raises SnapshotError if one has no good copy."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(CopiedLayer(directories, chain.manifest, chain.stage, reference))
            for reference in chain.layers
        ]


def ranges(
    layers: Sequence[CopiedLayer], within: KeyRange, raw_bytes: int
) -> list[tuple[KeyRange, int]]:
    """Return ranges that together are `within`, with about so many bytes each, and their bytes.

    Bytes are those of blocks before compression. Ranges end where a block begins, so that few
    blocks are read twice. There is always one.
    """
    starts = heapq.merge(*(_weights(layer, within) for layer in layers))
    found, start, held_bytes = [], within.start, 0
    for first, block_bytes in starts:
        if held_bytes >= raw_bytes and first > start:
            found.append((KeyRange(start, first), held_bytes))
            start, held_bytes = first, 0
        held_bytes += block_bytes
    return [*found, (KeyRange(start, within.stop), held_bytes)]


def merged(layers: Sequence[CopiedLayer], within: KeyRange) -> Iterator[SectionEntry]:
    """Yield the entities of a range, ascending. Raises SnapshotError."""
    try:
        yield from merge([layer.entries(within) for layer in layers], keep_tombstones=False)
    except FormatError as error:
        raise SnapshotError(f"verified layers are out of order: {error}") from error


def changed_by_delta(
    older: Sequence[CopiedLayer], delta: CopiedLayer, within: KeyRange
) -> Iterator[Change]:
    """Yield what a delta changes in the state of the older layers.

    From older layers, it reads only blocks that may hold an entity of the delta.
    """
    entries = list(delta.entries(within))
    wanted = _holding([entry[:2] for entry in entries])
    before = merge([layer.entries(within, wanted) for layer in older], keep_tombstones=False)
    for kind, key, old, new, is_named in _side_by_side(before, entries):
        if is_named and old != new:
            yield kind, key, old, new


def changed_by_base(
    older: Sequence[CopiedLayer], newer: Sequence[CopiedLayer], within: KeyRange
) -> Iterator[Change]:
    """Yield how two whole states differ."""
    for kind, key, old, new, _ in _side_by_side(merged(older, within), merged(newer, within)):
        if old != new:
            yield kind, key, old, new


def _weights(layer: CopiedLayer, within: KeyRange) -> Iterator[tuple[tuple[int, bytes], int]]:
    """Yield where the blocks of a range begin, and their bytes before compression."""
    for location in layer.blocks:
        if location.last >= within.start and location.first < within.stop:
            yield max(location.first, within.start), location.raw_bytes


def _holding(positions: Sequence[tuple[int, bytes]]) -> Wanted:
    """Return whether a block may hold one of the positions, which ascend."""

    def wanted(location: BlockLocation) -> bool:
        index = bisect_left(positions, location.first)
        return index < len(positions) and positions[index] <= location.last

    return wanted


def _side_by_side(
    old: Iterable[SectionEntry], new: Iterable[SectionEntry]
) -> Iterator[tuple[int, bytes, bytes | None, bytes | None, bool]]:
    """Yield kind, key, old and new bytes of every position, and whether the new side names it."""
    both = heapq.merge(
        ((kind, key, 0, canonical) for kind, key, canonical in old),
        ((kind, key, 1, canonical) for kind, key, canonical in new),
        key=lambda entry: entry[:3],
    )
    held: tuple[int, bytes, bytes | None] | None = None
    for kind, key, side, canonical in both:
        if held is not None and (side == 0 or held[:2] != (kind, key)):
            yield *held, None, False
            held = None
        if side == 0:
            held = (kind, key, canonical)
        else:
            before = held[2] if held is not None else None
            held = None
            yield kind, key, before, canonical, True
    if held is not None:
        yield *held, None, False
