"""Making a generation: a layer per section, then the manifest that names them.

A layer is named by the digest of its bytes, which is known at its end. So the blocks of a large one
go into temporary files as they come, and the files get their name once the last byte is there. What
fits into HELD_BYTES_MAX, as most deltas do, is held in memory and written in one go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from coordinator.snapshot.copies import Check, Copies, MakeRoom, Staged
from coordinator.snapshot.layout import LAYERS, layer_check, layer_file
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference
from viewstamp.format.block import Block, compress, raw_blocks
from viewstamp.format.layer import LayerHeader, LayerWriter
from viewstamp.format.section import Change, Entry, SectionTally
from viewstamp.limits import MIB

# Of one layer in memory.
HELD_BYTES_MAX: Final = 1 * MIB
# The chain before the first layer has reached nothing.
_NOTHING: Final = 0


def reached_by(layers: Sequence[LayerReference]) -> int:
    """The generation whose state a chain is; 0 for the empty chain."""
    return layers[-1].generation if layers else _NOTHING


def entries_of(changes: Iterable[Change], tally: SectionTally) -> Iterable[Entry]:
    """Count changes into a tally and yield the entries that a layer needs for them."""
    return (entry for change in changes if (entry := tally.add(change)) is not None)


class SectionWriter:
    """Writes one layer: `append` blocks in order, then `finish`. One thread at a time uses it.

    After an error of `append`, or to give up, call `discard`; after `finish` that does nothing.
    """

    def __init__(
        self,
        copies: Copies,
        label: str,
        header: LayerHeader,
        make_room: MakeRoom,
        pin: Callable[[bytes], None],
    ) -> None:
        """`pin` is told the digest before the file gets its name, so that no garbage is made of it.

        Nothing is written yet.
        """
        self._copies = copies
        self._label = label
        self._make_room = make_room
        self._pin = pin
        self._writer = LayerWriter(header)
        self._held: list[bytes] = [self._writer.begin()]
        self._held_bytes = len(self._held[0])
        self._staged: Staged | None = None

    @property
    def entries(self) -> int:
        """Entities and tombstones so far."""
        return self._writer.entries

    def append(self, block: Block) -> None:
        """Add the next block. Raises FormatError for one that is damaged or out of order,
        SnapshotNoSpace, CopyNotWritten, CopiesFailed."""
        self._write(self._writer.add(block))

    def append_entries(self, entries: Iterable[Entry]) -> None:
        """Encode, compress and add ascending entries; memory holds one block."""
        for raw in raw_blocks(entries):
            self.append(compress(raw))

    def append_changes(self, changes: Iterable[Change], tally: SectionTally) -> None:
        """Add what changed against the base, and count it into the section's tally."""
        self.append_entries(entries_of(changes, tally))

    def finish(self) -> LayerReference:
        """Return once the layer is durable and verified in every directory; raises as `append`."""
        try:
            return self._finish()
        finally:
            self.discard()

    def _finish(self) -> LayerReference:
        self._hold(self._writer.finish())
        reference = LayerReference(
            digest=self._writer.digest,
            size_bytes=self._writer.size_bytes,
            generation=self._writer.header.generation,
            base_generation=self._writer.header.base_generation,
            entries=self._writer.entries,
            tombstones=self._writer.tombstones,
            raw_bytes=self._writer.raw_bytes,
        )
        self._pin(reference.digest)
        self._place(layer_file(reference.digest), layer_check(reference))
        return reference

    def _place(self, name: str, check: Check) -> None:
        if self._staged is None:
            self._copies.write(name, self._taken(), check, self._make_room)
        else:
            self._staged.append(self._taken())
            self._staged.place(name, check)

    def discard(self) -> None:
        """Remove what has not got its final name."""
        self._taken()
        if self._staged is not None:
            self._staged.discard()

    def _write(self, data: bytes) -> None:
        self._hold(data)
        if self._held_bytes < HELD_BYTES_MAX:
            return
        # What failed once must be discarded: half of a block may be in some of the copies.
        if self._staged is None:
            self._staged = self._copies.stage(f"{LAYERS}/{self._label}", self._make_room)
        self._staged.append(self._taken())

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)

    def _taken(self) -> bytes:
        data = b"".join(self._held)
        self._held.clear()
        self._held_bytes = 0
        return data
