"""A layer in parts, which several peers send at once; each part is a partial file.

Parts follow from the size of the layer alone, so a restarted process continues with the same ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from coordinator.snapshot.partial_files import PartialFiles
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference
from viewstamp.format.layer import LayerReader
from viewstamp.limits import MIB

# Below this a second peer saves no time.
PART_BYTES_MIN: Final = 2 * MIB
# A peer opens its copies for each part, and verifies them as a whole before the first one.
PARTS_PER_LAYER_MAX: Final = 16
PARTIAL_SUFFIX: Final = ".part"


@dataclass(eq=False, slots=True)
class LayerPart:
    """The bytes of a layer from `begin` to `end`, and what became of asking for them.

    `failures` has what each peer said that sent nothing, by replica, since something came last.
    `taken_over` are the peers that have taken it over from a slower one. `only_from` is the peer
    that is asked before all others, None for whichever is free. `is_alone`: that one is to send the
    whole layer, if it can.
    """

    layer: LayerReference
    begin: int
    end: int
    only_from: int | None = None
    is_alone: bool = False
    failures: dict[int, str] = field(default_factory=dict)
    taken_over: set[int] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The partial file."""
        return f"{self.layer.digest.hex()}-{self.begin}-{self.end}{PARTIAL_SUFFIX}"

    @property
    def size_bytes(self) -> int:
        """How many bytes it has."""
        return self.end - self.begin


def parts_of(layer: LayerReference) -> list[LayerPart]:
    """Return the parts of a layer in order; a small one is a single part."""
    number = max(1, min(PARTS_PER_LAYER_MAX, layer.size_bytes // PART_BYTES_MIN))
    places = [layer.size_bytes * index // number for index in range(number + 1)]
    return [LayerPart(layer, begin, end) for begin, end in pairwise(places)]


class FetchedLayer:
    """The parts of a layer as one file. All methods block."""

    def __init__(self, files: PartialFiles, layer: LayerReference) -> None:
        self.layer = layer
        self._files = files
        self._parts = parts_of(layer)

    def chunks(self) -> Iterator[bytes]:
        """Yield all of it."""
        for part in self._parts:
            yield from self._files.chunks(part.name)

    def reader(self) -> LayerReader:
        """Return a reader of the layer. Raises FormatError."""
        return LayerReader(self._read, self.layer.size_bytes)

    def remove(self) -> None:
        """Remove what was fetched of it."""
        for part in self._parts:
            self._files.remove(part.name)

    def _read(self, offset: int, size: int) -> bytes:
        found = []
        for part in self._parts:
            begin, end = max(offset, part.begin), min(offset + size, part.end)
            if begin < end:
                found.append(self._files.read(part.name, begin - part.begin, end - begin))
        return b"".join(found)
