"""How many bytes of a layer belong to each kind of entity."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from analytics.snapshots.layers import CopiedLayer
from viewstamp.format.block import ENTRY_HEADER_BYTES


class Weight(NamedTuple):
    """Bytes before compression, and this kind's part of the file's bytes."""

    raw_bytes: int
    file_bytes: int


def kind_weights(layer: CopiedLayer) -> dict[int, Weight]:
    """Return what each kind weighs in a layer, by ascending kind.

    The bytes of the file (header, index and trailer too) are divided in proportion to the bytes
    before compression; the parts add up to the file. Only blocks with several kinds are decoded.
    """
    raw: dict[int, int] = {}
    for kind, raw_bytes in _parts(layer):
        raw[kind] = raw.get(kind, 0) + raw_bytes
    total, reached, given = sum(raw.values()), 0, 0
    weights = {}
    for kind, raw_bytes in sorted(raw.items()):
        reached += raw_bytes
        end = layer.reference.size_bytes * reached // total
        weights[kind] = Weight(raw_bytes, end - given)
        given = end
    return weights


def _parts(layer: CopiedLayer) -> Iterator[tuple[int, int]]:
    for index, location in enumerate(layer.blocks):
        if location.first[0] == location.last[0]:
            yield location.first[0], location.raw_bytes
            continue
        for kind, key, canonical in layer.block(index):
            yield kind, ENTRY_HEADER_BYTES + len(key) + len(canonical or b"")
