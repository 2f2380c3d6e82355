"""Merging layers: the last entry of a chain of layers for each entity.

Later layers win; a tombstone says that the entity was deleted. Merging a base and its deltas gives
the section; merging deltas alone, with their tombstones kept, gives one delta that does the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence

from viewstamp.format import FormatError
from viewstamp.format.section import SectionEntry


def merge(
    layers: Sequence[Iterable[SectionEntry]], *, keep_tombstones: bool
) -> Iterator[SectionEntry]:
    """Yield the last entry of each (kind, key), ascending; `layers` come base first.

    Tombstones are left out unless they are to be kept. Nothing is read ahead beyond one entry per
    layer. Raises FormatError at the first entry of a layer that does not come after the one before
    it.
    """
    ranked = [_ranked(layer, rank) for rank, layer in enumerate(layers)]
    last_kind, last_key = -1, b""
    for kind, key, _, canonical in heapq.merge(*ranked):
        if kind == last_kind and key == last_key:
            continue
        last_kind, last_key = kind, key
        if canonical is not None or keep_tombstones:
            yield SectionEntry(kind, key, canonical)


def _ranked(
    layer: Iterable[SectionEntry], rank: int
) -> Iterator[tuple[int, bytes, int, bytes | None]]:
    """Yield entries so that of equal (kind, key) the last layer's sorts first.

    No two layers have the same rank, so that canonical bytes are never compared.
    """
    last_kind, last_key = -1, b""
    for kind, key, canonical in layer:
        if kind < last_kind or (kind == last_kind and key <= last_key):
            raise FormatError(
                f"layer {rank}: entry {key.hex()} of kind {kind} does not come after "
                f"{last_key.hex()} of kind {last_kind}"
            )
        last_kind, last_key = kind, key
        yield kind, key, -rank, canonical
