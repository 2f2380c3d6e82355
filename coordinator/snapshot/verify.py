"""The full check of a generation: its digests and counts, computed from its layers alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from coordinator.snapshot.copies import CopyDirectories, CopyVerdict
from coordinator.snapshot.errors import NoIntactCopy
from coordinator.snapshot.layout import Check
from viewstamp.api.snapshots.v1.manifest_pb2 import SectionManifest, SnapshotManifest
from viewstamp.format.layer import LayerReader
from viewstamp.format.manifest import sections
from viewstamp.format.merge import merge
from viewstamp.format.section import SectionEntry, SectionTally


@dataclass(frozen=True, slots=True)
class LocalFileVerdict:
    """The verdict on one file, by copy directory, and the number of files left to check."""

    name: str
    copies: tuple[CopyVerdict, ...]
    files_left: int

    @property
    def is_intact(self) -> bool:
        """Whether every copy is intact now."""
        return all(copy.is_intact for copy in self.copies)


def scrub_file(
    copies: CopyDirectories, name: str, check: Check, files_left: int
) -> LocalFileVerdict:
    """Check every copy and repair what can be; a file without an intact copy is a verdict too."""
    try:
        verdicts = copies.scrub(name, check)
    except NoIntactCopy as error:
        verdicts = tuple(
            CopyVerdict(directory, reason, "no copy is intact")
            for directory, reason in error.reasons
        )
    return LocalFileVerdict(name, verdicts, files_left)


def tally_of(entries: Iterable[SectionEntry]) -> SectionTally:
    """Count a whole section."""
    tally = SectionTally()
    for kind, key, canonical in entries:
        tally.add((kind, key, None, canonical))
    return tally


def difference(section: SectionManifest, tally: SectionTally) -> str | None:
    """Return how a section's layers differ from its manifest, or None."""
    found = tally.digest.to_bytes()
    if found != section.state_digest:
        return f"state digest is {section.state_digest.hex()}, its layers give {found.hex()}"
    kinds = {count.kind: count.entities for count in section.kinds}
    if kinds != tally.kinds:
        return f"entities by kind are {kinds}, its layers have {tally.kinds}"
    return None


def problems_of(
    manifest: SnapshotManifest, layers: Mapping[int, Sequence[LayerReader]]
) -> list[str]:
    """Recompute every section's digest and counts; return what differs from the manifest.

    The root needs no check: it follows from the digests, and reading the manifest compared it.
    Raises NoIntactCopy, FormatError.
    """
    problems = []
    for stage, section in sections(manifest):
        chain = [layer.entries() for layer in layers[stage]]
        wrong = difference(section, tally_of(merge(chain, keep_tombstones=False)))
        if wrong is not None:
            problems.append(f"section of stage {stage}: {wrong}")
    return problems
