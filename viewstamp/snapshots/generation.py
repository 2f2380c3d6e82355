"""One generation on disk: its manifest, and the entities of its sections."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

from viewstamp.format import FormatError
from viewstamp.format.manifest import section_of, sections
from viewstamp.format.merge import merge
from viewstamp.format.section import Position, SectionEntry
from viewstamp.snapshots.copies import BadCopyError, Copies, LayerFile
from viewstamp.snapshots.errors import BadSection


class Generation:
    """Reads from the first good copy of each file; `copies.bad` lists the bad copies before it."""

    def __init__(self, copies: Copies, number: int) -> None:
        """Read the manifest; 0 stands for the newest generation. Raises SnapshotFilesError."""
        self.copies = copies
        self.number = copies.resolve(number)
        self.manifest = copies.manifest(self.number)

    @property
    def entities(self) -> int:
        """How many entities all sections have, as the manifest says."""
        return sum(count.entities for _, part in sections(self.manifest) for count in part.kinds)

    def entries(self, stage: int, start: Position | None = None) -> Iterator[SectionEntry]:
        """Yield the entities of a section from `start` on, in (kind, key) order.

        Each layer is verified whole before its first entry. Raises SnapshotFilesError.
        """
        with ExitStack() as stack:
            yield from self.merged(stage, self.opened_layers(stage, stack), start)

    def opened_layers(self, stage: int, stack: ExitStack) -> list[LayerFile]:
        """Open the layers of a section, base first, each verified whole; `stack` closes them."""
        layers = []
        for reference in section_of(self.manifest, stage).layers:
            layer = self.copies.layer(self.manifest, stage, reference)
            stack.callback(layer.close)
            layers.append(layer)
        return layers

    def merged(
        self, stage: int, layers: Sequence[LayerFile], start: Position | None
    ) -> Iterator[SectionEntry]:
        """Yield the entities of the open layers of a section. Raises BadSection."""
        try:
            entries = [layer.reader.entries(start) for layer in layers]
            yield from merge(entries, keep_tombstones=False)
        except (FormatError, BadCopyError) as error:
            raise BadSection(
                f"the layers of section {stage} of generation {self.number} were verified and"
                f" cannot be read: {error}",
                f"run `viewstamp snapshot verify {self.number}`",
            ) from error
