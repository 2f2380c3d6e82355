"""Verification of an archive: every object is read, and what can be restored is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference, SnapshotManifest
from viewstamp.archive.archive_errors import ArchiveError, NewerArchive, StoreUnreachable, WrongKey
from viewstamp.archive.archive_objects import ArchiveObjects, part_name, snapshot_name
from viewstamp.archive.archive_reading import layers_of, read_snapshot_manifest
from viewstamp.format import FormatError
from viewstamp.format.archive_manifest import ArchivedSnapshot, ArchiveManifest
from viewstamp.format.archive_parts import LogPart
from viewstamp.format.archive_piece import LogPiece
from viewstamp.snapshots.durable import temporary_of

# Of so many places the problem is told; the others are counted.
PROBLEMS_MAX: Final = 1_000

# Told of a step, how many of its objects or entries are done, and how many there are.
Told = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class RestorableRange:
    """Revisions that can be restored, each of them. Times are microseconds since 1970.

    `first_revision` 0 stands for the empty state.
    """

    first_revision: int
    last_revision: int
    first_time: int
    last_time: int


@dataclass(frozen=True, slots=True)
class ArchiveProblem:
    """An object that is missing or damaged, and what it stood for."""

    name: str
    reason: str
    message: str


@dataclass(slots=True)
class ArchiveVerdict:
    """What was found. It `is_whole` if nothing is missing that the manifest names, and no gap."""

    manifest: ArchiveManifest
    problems: list[ArchiveProblem] = field(default_factory=list)
    problems_untold: int = 0
    pieces: int = 0
    stored_bytes: int = 0
    restorable: list[RestorableRange] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether all is there, from the first entry of the log to the last one."""
        return not (self.problems or self.manifest.gaps)

    def tell(self, name: str, error: ArchiveError | FormatError) -> None:
        """Note a problem, or only count it if there are too many."""
        if len(self.problems) >= PROBLEMS_MAX:
            self.problems_untold += 1
            return
        reason = error.reason if isinstance(error, ArchiveError) else ArchiveError.reason
        message = error.message if isinstance(error, ArchiveError) else str(error)
        self.problems.append(ArchiveProblem(name, reason, message))


@dataclass(slots=True)
class _Run:
    """Entries of which none is missing between."""

    first_op: int
    parent: bytes
    last_op: int
    last_checksum: bytes
    first_revision: int
    last_revision: int
    first_time: int
    last_time: int

    def add(self, part: LogPart) -> None:
        self.last_op, self.last_checksum = part.last_op, part.last_checksum
        self.last_revision, self.last_time = part.last_revision, part.last_time


def check_archive_objects(
    objects: ArchiveObjects, manifest: ArchiveManifest, told: Told
) -> ArchiveVerdict:
    """Read every object that a manifest names.

    Raises StoreUnreachable, WrongKey and NewerArchive, which say nothing of the archive.
    """
    verdict = ArchiveVerdict(manifest)
    intact = _intact_snapshots(objects, manifest, verdict, told)
    runs = _intact_runs(objects, manifest, verdict, told)
    verdict.restorable = _restorable(intact, runs)
    return verdict


# --- Snapshots ---


def _intact_snapshots(
    objects: ArchiveObjects, manifest: ArchiveManifest, verdict: ArchiveVerdict, told: Told
) -> list[ArchivedSnapshot]:
    intact = []
    layers: dict[bytes, bool] = {}
    with TemporaryDirectory(prefix="viewstamp-archive-") as directory:
        for done, snapshot in enumerate(manifest.snapshots, start=1):
            found = _snapshot_manifest(objects, snapshot, verdict)
            if found is not None:
                wanted = layers_of(found)
                for layer in wanted:
                    if layer.digest not in layers:
                        layers[layer.digest] = _layer_is_intact(
                            objects, layer, snapshot, verdict, Path(directory)
                        )
                if all(layers[layer.digest] for layer in wanted):
                    intact.append(snapshot)
            told("snapshots", done, len(manifest.snapshots))
    return intact


def _snapshot_manifest(
    objects: ArchiveObjects, snapshot: ArchivedSnapshot, verdict: ArchiveVerdict
) -> SnapshotManifest | None:
    try:
        found = read_snapshot_manifest(objects, snapshot)
    except (StoreUnreachable, WrongKey, NewerArchive):
        raise
    except (ArchiveError, FormatError) as error:
        verdict.tell(snapshot_name(snapshot), error)
        return None
    verdict.stored_bytes += snapshot.stored_bytes
    stated = (snapshot.generation, snapshot.cut_op, snapshot.cut_revision, snapshot.cut_checksum)
    if stated != (found.generation, found.cut_op, found.cut_revision, found.cut_checksum):
        verdict.tell(snapshot_name(snapshot), FormatError("it is of another cut"))
        return None
    return found


def _layer_is_intact(
    objects: ArchiveObjects,
    layer: LayerReference,
    snapshot: ArchivedSnapshot,
    verdict: ArchiveVerdict,
    directory: Path,
) -> bool:
    path = directory / "layer"
    try:
        objects.fetch_layer(layer, path)
    except (StoreUnreachable, WrongKey, NewerArchive):
        raise
    except ArchiveError as error:
        verdict.tell(f"layer {layer.digest.hex()} of snapshot {snapshot.generation}", error)
        return False
    temporary_of(path).unlink()
    verdict.stored_bytes += layer.size_bytes
    return True


# --- The log ---


def _intact_runs(
    objects: ArchiveObjects, manifest: ArchiveManifest, verdict: ArchiveVerdict, told: Told
) -> list[_Run]:
    cuts = {each.cut_op: each.cut_checksum for each in manifest.snapshots}
    runs: list[_Run] = []
    first_op = manifest.parts[0].first_op if manifest.parts else 0
    for part, piece in _read_pieces(objects, manifest.parts, verdict):
        verdict.pieces += 1
        verdict.stored_bytes += part.stored_bytes
        _check_cuts(part, piece, cuts, verdict)
        if runs and part.first_op == runs[-1].last_op + 1:
            if part.parent != runs[-1].last_checksum:
                verdict.tell(part_name(part), FormatError("it does not follow the entry before"))
                continue
            runs[-1].add(part)
        else:
            runs.append(_run_of(part))
        told("log", part.last_op - first_op + 1, manifest.last_op - first_op + 1)
    return runs


def _read_pieces(
    objects: ArchiveObjects, parts: Sequence[LogPart], verdict: ArchiveVerdict
) -> Iterator[tuple[LogPart, LogPiece]]:
    """Yield the pieces that are intact; note the others, and indexes that cannot be read."""
    for part in parts:
        try:
            if part.is_piece:
                yield part, objects.piece(part)
                continue
            inner = objects.index(part)
        except (StoreUnreachable, WrongKey, NewerArchive):
            raise
        except ArchiveError as error:
            verdict.tell(part_name(part), error)
            continue
        verdict.stored_bytes += part.stored_bytes
        yield from _read_pieces(objects, inner, verdict)


def _check_cuts(
    part: LogPart, piece: LogPiece, cuts: dict[int, bytes], verdict: ArchiveVerdict
) -> None:
    """Compare the entries at which snapshots were cut with what the snapshots say."""
    for op, checksum in cuts.items():
        if part.first_op <= op <= part.last_op:
            found = piece.entries[op - part.first_op].checksum
            if found != checksum:
                text = f"entry {op} is {found.hex()}, a snapshot was cut at {checksum.hex()}"
                verdict.tell(part_name(part), FormatError(text))


def _run_of(part: LogPart) -> _Run:
    return _Run(
        part.first_op,
        part.parent,
        part.last_op,
        part.last_checksum,
        part.first_revision,
        part.last_revision,
        part.first_time,
        part.last_time,
    )


def _restorable(
    snapshots: Sequence[ArchivedSnapshot], runs: Sequence[_Run]
) -> list[RestorableRange]:
    """Return what can be restored: from each beginning as far as the log behind it reaches."""
    found = [
        RestorableRange(0, run.last_revision, run.first_time, run.last_time)
        for run in runs
        if run.first_op == 1
    ]
    for snapshot in snapshots:
        reach = snapshot.cut_revision, snapshot.timestamp
        for run in runs:
            if run.first_op <= snapshot.cut_op + 1 <= run.last_op:
                reach = run.last_revision, run.last_time
        found.append(RestorableRange(snapshot.cut_revision, reach[0], snapshot.timestamp, reach[1]))
    return _united(sorted(found, key=lambda each: each.first_revision))


def _united(ranges: Sequence[RestorableRange]) -> list[RestorableRange]:
    united: list[RestorableRange] = []
    for each in ranges:
        if united and each.first_revision <= united[-1].last_revision + 1:
            before = united.pop()
            further = each if each.last_revision > before.last_revision else before
            each = RestorableRange(
                before.first_revision,
                further.last_revision,
                before.first_time,
                max(before.last_time, each.last_time),
            )
        united.append(each)
    return united
