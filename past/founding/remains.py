"""What a lost cluster has left: one snapshot, and perhaps the log of a replica behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from coordinator.mux.entities import RestoreError
from coordinator.mux.stage import Stage
from coordinator.mux.types import MuxError
from past.founding.errors import DirectoryInUseError, LogLacksEntries, UnusableRemains
from past.founding.log_places import LogPlaces
from past.founding.staged_log import StagedLog
from past.sections import ArrivingSnapshot
from past.state import ForeignEntryError, PastState
from services.runtime.installing import NewerSectionError, SectionContentsError
from viewstamp.api.snapshots.v1.manifest_pb2 import SnapshotManifest
from viewstamp.format import FormatError
from viewstamp.format.manifest import sections
from viewstamp.format.prepare import SealedPrepare
from viewstamp.journals.log_findings import LogVerdict
from viewstamp.journals.log_reading import LogReading, read_log
from viewstamp.journals.segment_window import JOURNAL_DIRECTORY
from viewstamp.journals.superblock_reading import SUPERBLOCK_FILE
from viewstamp.limits import FEATURE_LEVEL_MAX
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.generation import Generation

NEWEST: Final = 0
# Above every op.
_ALL_COMMITTED: Final = 1 << 64
_UNUSABLE: Final = (
    FormatError,
    RestoreError,
    SectionContentsError,
    NewerSectionError,
    ForeignEntryError,
    MuxError,
)
_MAY_HIDE: Final = frozenset({LogVerdict.LOST, LogVerdict.FATAL, LogVerdict.UNKNOWN})

# Told of a step, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to start from.

    `source` is a replica's data directory, or a snapshot's. `copies` are the copy directories of a
    replica that keeps them elsewhere, `archive` is where it moved older segments of its journal.
    `generation` 0 is the one that the replica restarts from, or the newest of a snapshot directory;
    with an end, the newest that was cut before that. The end is a revision, or a log time in
    microseconds since 1970; None takes the whole log. With `accept_gaps` a log that lacks entries
    is taken up to the first one. A source that `is_staged` was fetched from an archive: a snapshot
    or none, and committed entries behind it.
    """

    source: Path
    copies: tuple[Path, ...] = ()
    generation: int = NEWEST
    archive: Path | None = None
    to_revision: int | None = None
    to_time_us: int | None = None
    accept_gaps: bool = False
    is_staged: bool = False

    @property
    def has_end(self) -> bool:
        """Whether not the whole log is wanted."""
        return self.to_revision is not None or self.to_time_us is not None

    def takes(self, entry: SealedPrepare) -> bool:
        """Return whether the beginning of an entry lies before the end."""
        if self.to_revision is not None and entry.first_revision > self.to_revision:
            return False
        return self.to_time_us is None or entry.timestamp <= self.to_time_us

    def takes_cut(self, manifest: SnapshotManifest) -> bool:
        """Return whether a snapshot was cut before the end."""
        if self.to_revision is not None and manifest.cut_revision > self.to_revision:
            return False
        return self.to_time_us is None or manifest.timestamp <= self.to_time_us


class FollowingEntries(Protocol):
    """Entries of a log in the order of their ops."""

    def __len__(self) -> int:
        """Return how many there are."""
        ...

    def entries(self, first_op: int) -> Iterator[SealedPrepare]:
        """Yield the entries from an op on, up to the first one that is not here."""
        ...


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
    if wanted.is_staged:
        return _read_staged(wanted, progress)
    reading = _log_of(wanted)
    opened = _generation(wanted, reading)
    if opened is None:
        assert reading is not None, "a directory of snapshots alone has one to begin with"
        state = reading.superblock.state
        remains = Remains(PastState(), b"" if state is None else state.cluster_id, 0, 0)
    else:
        remains = _begun(opened, progress)
    if reading is not None:
        _apply_log(remains, reading, wanted, progress)
    return remains


def _begun(opened: Generation, progress: Progress) -> Remains:
    manifest = opened.manifest
    remains = Remains(
        _state_of(opened, progress), manifest.cluster_id, opened.number, manifest.cut_revision
    )
    bad = opened.copies.bad
    remains.bad_copies = [f"{path}: {why}" for path, why in sorted(bad.items())]
    return remains


def _read_staged(wanted: Wanted, progress: Progress) -> Remains:
    """Return what was fetched from an archive leads to."""
    log = StagedLog(wanted.source)
    copies = Copies([wanted.source])
    if copies.generations():
        remains = _begun(Generation(copies, NEWEST), progress)
    else:
        remains = Remains(PastState(), log.cluster_id(), 0, 0)
    if not _apply_wanted(remains, log, _ALL_COMMITTED, wanted, progress):
        _check_end(remains, wanted)
    remains.state.forget_changes()
    return remains


def _log_of(wanted: Wanted) -> LogReading | None:
    """Return the log of a data directory, None for a directory of snapshots."""
    if not (wanted.source / JOURNAL_DIRECTORY).is_dir():
        if wanted.has_end or wanted.archive is not None:
            raise UnusableRemains(
                f"{wanted.source} has no journal that would lead further than its snapshot",
                "leave out --to-revision, --to-time and --archive, or give the data directory of a"
                " replica",
                is_usage=True,
            )
        if (wanted.source / SUPERBLOCK_FILE).exists() and not wanted.accept_gaps:
            raise LogLacksEntries(
                f"{wanted.source} is a replica's directory without its journal",
                "bring the journal back; with --accept-gaps everything behind the snapshot is lost",
            )
        return None
    reading = read_log(wanted.source, wanted.archive)
    if reading.writer is not None:
        raise DirectoryInUseError(
            f"process {reading.writer} has {wanted.source} in use",
            "stop the replica: its log must not grow while it is read",
        )
    return reading


def _generation(wanted: Wanted, reading: LogReading | None) -> Generation | None:
    """Return the snapshot to begin with, None for the empty state. Raises FilesError."""
    directories = wanted.copies or copy_directories(wanted.source)
    if wanted.generation:
        opened = Generation(Copies(directories), wanted.generation)
        if not wanted.takes_cut(opened.manifest):
            raise UnusableRemains(
                f"generation {opened.number} was cut at revision {opened.manifest.cut_revision},"
                " behind the end that is wanted",
                "leave out --generation, or give an older one",
                is_usage=True,
            )
        return opened
    state = None if reading is None else reading.superblock.state
    if not wanted.has_end and (state is None or state.generation):
        return Generation(Copies(directories), NEWEST if state is None else state.generation)
    if not any(directory.is_dir() for directory in directories):
        return None
    return _newest_before(wanted, Copies(directories))


def _newest_before(wanted: Wanted, copies: Copies) -> Generation | None:
    for number in reversed(copies.generations()):
        opened = Generation(copies, number)
        if wanted.takes_cut(opened.manifest):
            return opened
    return None


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
    return arriving.state()


def _apply_log(remains: Remains, reading: LogReading, wanted: Wanted, progress: Progress) -> None:
    """Apply the entries behind the cut, in the order of their ops, as far as they are wanted."""
    places = LogPlaces(reading.survey, from_op=remains.state.op + 1)
    committed = _known_commit(reading)
    begun_op = remains.state.op
    missing = places.missing_behind(begun_op, committed)
    if not wanted.accept_gaps and not wanted.has_end:
        _check_whole(reading, places, begun_op, missing, wanted)
    if not _apply_wanted(remains, places, committed, wanted, progress):
        remains.missing = missing
        if not wanted.accept_gaps:
            _check_whole(reading, places, begun_op, missing, wanted)
        _check_end(remains, wanted)
    remains.state.forget_changes()
    if not remains.state.op:
        raise UnusableRemains(
            f"{wanted.source} holds nothing up to the end that is wanted",
            "give a later --to-time or --to-revision, or another directory",
            is_usage=True,
        )


def _check_whole(
    reading: LogReading,
    places: LogPlaces,
    begun_op: int,
    missing: list[tuple[int, int]],
    wanted: Wanted,
) -> None:
    """Raise LogLacksEntries for missing entries, and for damage that a start would not cut off.

    What lies below the snapshot's cut, or was written again, hides nothing.
    """
    if missing:
        raise _lacks(missing, wanted)
    survey = reading.survey
    told = [
        f"segment {each.segment} at offset {each.offset}: {each.reason}"
        for each in survey.findings
        if each.verdict in _MAY_HIDE
        and (each.op is None or (each.op > begun_op and each.op not in places))
    ]
    if survey.findings_untold:
        told.append(f"{survey.findings_untold} more places")
    if told:
        raise LogLacksEntries(
            f"the log in {reading.data} is damaged where entries may have been: {'; '.join(told)}",
            "try the directory of another replica; --accept-gaps takes what is intact before that",
        )


def _apply_wanted(
    remains: Remains,
    places: FollowingEntries,
    committed: int,
    wanted: Wanted,
    progress: Progress,
) -> bool:
    """Apply what there is; return whether the end that is wanted was reached."""
    state = remains.state
    for entry in places.entries(state.op + 1):
        if not wanted.takes(entry):
            return True
        _check_level(entry)
        state.apply(entry, wanted.to_revision)
        remains.entries += 1
        remains.unconfirmed += entry.op > committed
        progress("log", remains.entries, len(places))
        if state.is_partial:
            return True
    return wanted.to_revision is not None and state.revision == wanted.to_revision


def _check_level(entry: SealedPrepare) -> None:
    level = entry.header.feature_level
    if level > FEATURE_LEVEL_MAX:
        raise UnusableRemains(
            f"op {entry.op} is of feature level {level}, and this build knows {FEATURE_LEVEL_MAX}",
            "use the build that wrote it, or a newer one",
        )


def _check_end(remains: Remains, wanted: Wanted) -> None:
    """Check that the log that is here ends where it may end."""
    if wanted.to_revision is not None:
        raise UnusableRemains(
            f"the log ends at revision {remains.state.revision}, before {wanted.to_revision}",
            "leave out --to-revision to take all of it",
            is_usage=True,
        )


def _known_commit(reading: LogReading) -> int:
    return max(reading.survey.known.commit_max, reading.survey.commit)


def _lacks(missing: list[tuple[int, int]], wanted: Wanted) -> LogLacksEntries:
    ranges = ", ".join(f"{first} to {last}" for first, last in missing)
    return LogLacksEntries(
        f"the log in {wanted.source} lacks entries {ranges}, which were acknowledged or may have"
        " been",
        "try the directory of another replica; with --accept-gaps the log is taken up to the first"
        " missing entry, and everything behind it is lost",
    )
