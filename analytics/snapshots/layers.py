"""One layer out of several copies: every block is read from a copy in which it is good.

Header, trailer and index of a copy are verified when it is opened, and each block when it is read,
all by checksums that the index and the trailer tie together. This module does not compare the
file's digest with its name, since every partition would have to read the whole file: `viewstamp
snapshot verify` does that.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from analytics.snapshots.copies import LAYERS, Result, first_good
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.format import FormatError
from viewstamp.format.layer import BlockLocation, LayerReader, decode_block
from viewstamp.format.manifest import check_layer_belongs, layer_name
from viewstamp.format.section import Position, SectionEntry

# Positions before and after all entries of a section.
FIRST: Final[Position] = (-1, b"")
END: Final[Position] = (1 << 32, b"")


class KeyRange(NamedTuple):
    """Entries from `start` up to `stop`, exclusive."""

    start: Position = FIRST
    stop: Position = END

    def holds(self, position: Position) -> bool:
        """Return whether a position is in the range."""
        return self.start <= position < self.stop


Wanted = Callable[[BlockLocation], bool]


class CopiedLayer:
    """A layer that a manifest names. Close it, or use it as a context."""

    def __init__(
        self,
        directories: Sequence[Path],
        manifest: SnapshotManifest,
        stage: int,
        reference: LayerReference,
    ) -> None:
        """Open the first good copy. Raises SnapshotError, NewerSnapshotError."""
        self._name = f"{LAYERS}/{layer_name(reference.digest)}"
        self._paths = [directory / self._name for directory in directories]
        self._manifest, self._stage, self.reference = manifest, stage, reference
        self._open: dict[Path, tuple[int, LayerReader]] = {}
        try:
            self.blocks = self._first_good(lambda reader: reader.blocks)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CopiedLayer:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Give the files back."""
        for descriptor, _ in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def entries(self, within: KeyRange, wanted: Wanted | None = None) -> Iterator[SectionEntry]:
        """Yield the entries of a range in order, tombstones too.

        Blocks that are not `wanted` are not read. Raises SnapshotError.
        """
        first = bisect_left(self.blocks, within.start, key=_last_of)
        for index in range(first, len(self.blocks)):
            location = self.blocks[index]
            if location.first >= within.stop:
                return
            if wanted is not None and not wanted(location):
                continue
            entries = self.block(index)
            if location.first < within.start or location.last >= within.stop:
                entries = [entry for entry in entries if within.holds(entry[:2])]
            yield from entries

    def block(self, index: int) -> list[SectionEntry]:
        """Return the entries of a block. Raises SnapshotError if it is good in no copy."""
        return self._first_good(lambda reader: self._decode(reader, index))

    def _decode(self, reader: LayerReader, index: int) -> list[SectionEntry]:
        location = self.blocks[index]
        if reader.blocks is not self.blocks and reader.blocks[index] != location:
            raise FormatError(f"its index and that of another copy disagree about block {index}")
        entries = decode_block(reader.read_block(index))
        if entries[0][:2] != location.first or entries[-1][:2] != location.last:
            raise FormatError(f"block {index} and the index disagree about its first or last entry")
        return entries

    def _first_good(self, action: Callable[[LayerReader], Result]) -> Result:
        def act(path: Path) -> tuple[Path, Result]:
            return path, action(self._reader(path))

        good, result = first_good(self._paths, act, self._name)
        # A copy that was passed over is tried last from now on, so that it is reported once.
        first = self._paths.index(good)
        self._paths = self._paths[first:] + self._paths[:first]
        return result

    def _reader(self, path: Path) -> LayerReader:
        """Open a copy, once. Raises FormatError, OSError."""
        if path not in self._open:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                reader = LayerReader(
                    lambda offset, size: os.pread(descriptor, size, offset),
                    os.fstat(descriptor).st_size,
                )
                check_layer_belongs(self._manifest, self._stage, self.reference, reader)
            except BaseException:
                os.close(descriptor)
                raise
            self._open[path] = (descriptor, reader)
        return self._open[path][1]


def _last_of(location: BlockLocation) -> Position:
    return location.last
