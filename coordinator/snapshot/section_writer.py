"""Writing one layer of a section: blocks in, one file per directory out.

A layer is named by the digest of its bytes, which is known only at its end. So the blocks of a
large layer go into temporary files as they come, and the files get their name after the last byte.
A layer of at most HELD_BYTES_MAX, as most deltas are, is held in memory and written at once: each
use of a thread costs the event loop, and each file call the process that makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from coordinator.snapshot.layout import LAYERS, layer_check, layer_file
from coordinator.snapshot.writer_process import FileWriter
from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference
from viewstamp.format.block import Block, compress, raw_blocks
from viewstamp.format.layer import LayerHeader, LayerWriter
from viewstamp.format.section import SectionEntry
from viewstamp.limits import MIB

# The bytes of one layer's blocks in memory.
HELD_BYTES_MAX: Final = 1 * MIB
# The generation that an empty chain has reached.
_NOTHING: Final = 0


def reached_by(layers: Sequence[LayerReference]) -> int:
    """Return the generation whose state a chain holds; 0 for the empty chain."""
    return layers[-1].generation if layers else _NOTHING


class SectionWriter:
    """Writes one layer: `add` blocks in order, `write` when that says so, then `finish`.

    All but `add` block, and are called one at a time. After an error of `write`, or to give up,
    call `discard`; after `finish` that does nothing.
    """

    def __init__(
        self,
        writer: FileWriter,
        label: str,
        header: Callable[[], LayerHeader],
        pin: Callable[[bytes], None],
        *,
        use_reserve: bool,
    ) -> None:
        """`header` is called once, before anything is written, and may block. `pin` gets the digest
        before the file gets its name, so that the file is not collected as garbage."""
        self._writer = writer
        self._label = label
        self._header = header
        self._pin = pin
        self._use_reserve = use_reserve
        self._blocks: list[Block] = []
        self._held_bytes = 0
        self._layer: LayerWriter | None = None
        self._unwritten: list[bytes] = []
        self._key: str | None = None
        self.entries = 0
        """Entities and tombstones so far."""

    def add(self, block: Block) -> bool:
        """Hold the next block, and return whether it is time to `write`. Does not block."""
        self._blocks.append(block)
        self._held_bytes += len(block.data)
        self.entries += block.entries
        return self._held_bytes >= HELD_BYTES_MAX

    def add_entries(self, entries: Iterable[SectionEntry]) -> None:
        """Encode, compress and write ascending entries."""
        for raw in raw_blocks(entries):
            if self.add(compress(raw)):
                self.write()

    def begin(self) -> LayerWriter:
        """Return the layer, whose header is made at the first call. Writes nothing."""
        if self._layer is None:
            self._layer = LayerWriter(self._header())
            self._unwritten.append(self._layer.begin())
        return self._layer

    def write(self) -> None:
        """Write the held blocks into a file without a name yet. Raises FormatError for a block that
        is damaged or out of order, SnapshotNoSpace, CopyNotWritten, CopiesFailed."""
        data = self._take(self.begin())
        if self._key is None:
            self._key = self._writer.stage(f"{LAYERS}/{self._label}", self._use_reserve)
        self._writer.append(self._key, data)

    def finish(self) -> LayerReference:
        """Return once the layer is durable and verified in every directory; raises as `write`."""
        try:
            return self._finish()
        finally:
            self.discard()

    def _finish(self) -> LayerReference:
        layer = self.begin()
        data = self._take(layer) + layer.finish()
        reference = LayerReference(
            digest=layer.digest,
            size_bytes=layer.size_bytes,
            generation=layer.header.generation,
            base_generation=layer.header.base_generation,
            entries=layer.entries,
            tombstones=layer.tombstones,
            raw_bytes=layer.raw_bytes,
        )
        self._pin(reference.digest)
        name = layer_file(reference.digest)
        if self._key is None:
            self._writer.write(name, data, self._use_reserve)
        else:
            self._writer.append(self._key, data)
            self._writer.place(self._key, name, layer_check(reference))
        return reference

    def discard(self) -> None:
        """Remove the files without a final name."""
        self._blocks.clear()
        key, self._key = self._key, None
        if key is not None:
            self._writer.discard(key)

    def _take(self, layer: LayerWriter) -> bytes:
        """Return the unwritten bytes; every block is verified on the way."""
        self._unwritten += map(layer.add, self._blocks)
        data = b"".join(self._unwritten)
        self._unwritten.clear()
        self._blocks.clear()
        self._held_bytes = 0
        return data
