"""What a lost cluster has left: one snapshot, and perhaps the log of a replica behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coordinator.mux.entities import RestoreError
from coordinator.mux.stage import Stage
from past.founding.errors import DirectoryInUseError, LogLacksEntries, UnusableRemains
from past.founding.log_places import LogPlaces
from past.sections import ArrivingSnapshot
from past.state import ForeignEntryError, PastState
from services.runtime.installing import NewerSectionError, SectionContentsError
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format import FormatError
from viewstamp.format.manifest import section_of, sections
from viewstamp.format.prepare import SealedPrepare
from viewstamp.journals.log_reading import LogReading, read_log
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.generation import Generation

NEWEST: Final = 0
JOURNAL_DIRECTORY: Final = "journal"
_UNUSABLE: Final = (
    FormatError,
    RestoreError,
    SectionContentsError,
    NewerSectionError,
    ForeignEntryError,
)

# Told of a step, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to start from.

    `source` is a replica's data directory, or a snapshot's. `copies` are the copy directories of a
    replica that keeps them elsewhere. `generation` 0 is the one that the replica restarts from, or
    the newest of a snapshot directory. `to_revision` None takes the whole log. With `accept_gaps` a
    log that lacks entries is taken up to the first one.
    """

    source: Path
    copies: tuple[Path, ...] = ()
    generation: int = NEWEST
    to_revision: int | None = None
    accept_gaps: bool = False


@dataclass(slots=True)
class Remains:
    """The state that they lead to, and how far that is.

    `unconfirmed` entries are intact, but nothing here says that they were committed. They are
    taken: a caller may have been told of them.
    """

    state: PastState
    cluster_id: bytes
    generation: int
    cut_revision: int
    entries: int = 0
    unconfirmed: int = 0
    missing: list[tuple[int, int]] = field(default_factory=list)
    bad_copies: list[str] = field(default_factory=list)


def read_remains(wanted: Wanted, progress: Progress) -> Remains:
    """Return what is left.

    Raises FilesError for files that cannot be used, LogLacksEntries, OSError.
    """
    try:
        return _read(wanted, progress)
    except _UNUSABLE as error:
        raise UnusableRemains(
            f"{wanted.source}: {error}", "give another generation, or the directory of another one"
        ) from error


def _read(wanted: Wanted, progress: Progress) -> Remains:
    reading = _log_of(wanted)
    generation = wanted.generation
    if reading is not None and not generation and reading.superblock.state is not None:
        generation = reading.superblock.state.generation
        if not generation:
            remains = Remains(PastState(), reading.superblock.state.cluster_id, 0, 0)
            _apply_log(remains, reading, wanted, progress)
            return remains
    copies = Copies(wanted.copies or copy_directories(wanted.source))
    opened = Generation(copies, generation)
    manifest = opened.manifest
    _check_reaches(wanted, manifest)
    state = _state_of(opened, progress)
    remains = Remains(state, manifest.cluster_id, opened.number, manifest.cut_revision)
    remains.bad_copies = [f"{path}: {why}" for path, why in sorted(copies.bad.items())]
    if reading is not None:
        _apply_log(remains, reading, wanted, progress)
    return remains


def _log_of(wanted: Wanted) -> LogReading | None:
    """Return the log of a data directory, None for a directory of snapshots."""
    if not (wanted.source / JOURNAL_DIRECTORY).is_dir():
        if wanted.to_revision is not None:
            raise UnusableRemains(
                f"{wanted.source} has no journal that would lead to revision {wanted.to_revision}",
                "leave out --to-revision, or give the data directory of a replica",
                is_usage=True,
            )
        return None
    reading = read_log(wanted.source)
    if reading.writer is not None:
        raise DirectoryInUseError(
            f"process {reading.writer} has {wanted.source} in use",
            "stop the replica: its log must not grow while it is read",
        )
    return reading


def _check_reaches(wanted: Wanted, manifest: SnapshotManifest) -> None:
    if wanted.to_revision is not None and wanted.to_revision < manifest.cut_revision:
        raise UnusableRemains(
            f"generation {manifest.generation} was cut at revision {manifest.cut_revision}, behind"
            f" revision {wanted.to_revision}",
            "give an older --generation, see `viewstamp snapshot list --data DIR`",
            is_usage=True,
        )


def _state_of(generation: Generation, progress: Progress) -> PastState:
    """Load a generation, layer by layer, each verified whole before its first block."""
    arriving = ArrivingSnapshot(generation.manifest)
    manifest = generation.manifest
    size = sum(layer.size_bytes for _, part in sections(manifest) for layer in part.layers)
    done = 0
    for stage, part in sections(manifest):
        with ExitStack() as stack:
            layers = generation.opened_layers(stage, stack)
            for index, layer in enumerate(layers):
                blocks = (layer.reader.read_block(n) for n in range(len(layer.reader.blocks)))
                arriving.add(Stage(stage), index, blocks)
                done += part.layers[index].size_bytes
                progress("snapshot", done, size)
        assert len(layers) == len(section_of(manifest, stage).layers)
    return arriving.state()


def _apply_log(remains: Remains, reading: LogReading, wanted: Wanted, progress: Progress) -> None:
    """Apply the entries behind the cut, in the order of their ops, as far as they are wanted."""
    places = LogPlaces(reading.survey, from_op=remains.state.op + 1)
    remains.missing = places.missing_behind(remains.state.op, _known_commit(reading))
    if remains.missing and not wanted.accept_gaps:
        raise _lacks(remains.missing, wanted)
    committed = _known_commit(reading)
    for entry in _wanted_entries(places, remains.state, wanted):
        remains.state.apply(entry, wanted.to_revision)
        remains.entries += 1
        remains.unconfirmed += entry.op > committed
        progress("log", remains.entries, len(places))
        if remains.state.is_partial:
            break
    remains.state.forget_changes()
    if wanted.to_revision is not None and remains.state.revision < wanted.to_revision:
        raise UnusableRemains(
            f"the log ends at revision {remains.state.revision}, before {wanted.to_revision}",
            "leave out --to-revision to take all of it",
            is_usage=True,
        )


def _wanted_entries(places: LogPlaces, state: PastState, wanted: Wanted) -> Iterator[SealedPrepare]:
    for entry in places.entries(state.op + 1):
        if wanted.to_revision is not None and entry.first_revision > wanted.to_revision:
            return
        yield entry


def _known_commit(reading: LogReading) -> int:
    known = reading.survey.known.commit_max
    return max(known, reading.survey.commit)


def _lacks(missing: list[tuple[int, int]], wanted: Wanted) -> LogLacksEntries:
    ranges = ", ".join(f"{first} to {last}" for first, last in missing)
    return LogLacksEntries(
        f"the log in {wanted.source} lacks entries {ranges}, which were acknowledged or may have"
        " been",
        "try the directory of another replica; with --accept-gaps the log is taken up to the first"
        " missing entry, and everything behind it is lost",
    )
