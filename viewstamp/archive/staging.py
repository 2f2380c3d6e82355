"""What a restore needs of an archive, fetched into a directory beside the new cluster's.

Each file gets its name when it is whole, verified and durable. So a fetch that was cut short goes
on where it was, and what is there is read, and not fetched once more. The directory is like one of
copies of snapshots, with the pieces of the log beside, none of it encrypted:

    layers/   manifests/   log/FIRST-LAST.piece
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference
from viewstamp.archive.archive_check import Told
from viewstamp.archive.archive_errors import OutOfArchive, PieceDamaged, PieceMissing
from viewstamp.archive.archive_objects import ArchiveObjects
from viewstamp.archive.archive_reading import layers_of, pieces_from, read_snapshot_manifest
from viewstamp.format import FormatError
from viewstamp.format.archive_manifest import ArchivedSnapshot, ArchiveManifest
from viewstamp.format.archive_parts import LogPart
from viewstamp.format.archive_piece import decode_piece, encode_piece
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import encode_manifest, layer_name, manifest_name
from viewstamp.limits import MIB
from viewstamp.snapshots.copies import LAYERS, MANIFESTS
from viewstamp.snapshots.durable import publish, sync_directory, temporary_of

STAGED_SUFFIX: Final = ".fetched"
STAGED_LOG: Final = "log"
# Says that a fetch made the directory, so that no other one's files are removed.
STAGED_MARKER: Final = "FETCHED"
STAGED_BYTES_MAX: Final = 64 * 1024 * MIB
DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
READ_BYTES: Final = 1 * MIB


@dataclass(frozen=True, slots=True)
class WantedOfArchive:
    """What is to be restored: the end is a revision, a log time in microseconds, or None for all.

    `generation` 0 is the newest snapshot before the end. With `accept_gaps` the log is taken up to
    the first entry that is missing.
    """

    to_revision: int | None = None
    to_time_us: int | None = None
    generation: int = 0
    accept_gaps: bool = False

    def takes(self, revision: int, time_us: int) -> bool:
        """Return whether a revision and a time lie before the end."""
        if self.to_revision is not None and revision > self.to_revision:
            return False
        return self.to_time_us is None or time_us <= self.to_time_us


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """What to fetch: a snapshot, None for the empty state, and the pieces behind it."""

    snapshot: ArchivedSnapshot | None
    pieces: tuple[LogPart, ...]
    lost: str = ""

    @property
    def needed_bytes(self) -> int:
        """What lies on the disk at the end, about."""
        log_bytes = sum(piece.stored_bytes for piece in self.pieces)
        return log_bytes + (self.snapshot.total_bytes if self.snapshot else 0)


def plan_of(
    objects: ArchiveObjects, manifest: ArchiveManifest, wanted: WantedOfArchive
) -> StagingPlan:
    """Return what leads to the end that is wanted. Raises OutOfArchive, PieceMissing, ArchiveError.

    Whether objects are there shows when they are fetched.
    """
    snapshot = _snapshot(manifest, wanted)
    op = snapshot.cut_op if snapshot else 0
    revision = snapshot.cut_revision if snapshot else 0
    if not snapshot and (not manifest.parts or manifest.parts[0].first_op != 1):
        raise _nothing(objects, manifest)
    pieces = []
    lost = ""
    for part in pieces_from(objects, manifest.parts, op + 1):
        if wanted.to_revision is not None and revision >= wanted.to_revision:
            break
        is_next = part.first_op <= op + 1
        if is_next and not wanted.takes(part.first_revision, part.first_time):
            break
        if not is_next:
            # What is missing may lie before the end.
            lost = f"the archive has no entries {op + 1} to {part.first_op - 1}"
            if wanted.accept_gaps:
                break
            raise PieceMissing(
                lost,
                "restore up to a revision or a time before that, or behind the next snapshot; with"
                " --accept-gaps everything behind these entries is lost",
            )
        pieces.append(part)
        op, revision = part.last_op, part.last_revision
    if not snapshot and not pieces:
        raise _nothing(objects, manifest)
    return StagingPlan(snapshot, tuple(pieces), lost)


def _snapshot(manifest: ArchiveManifest, wanted: WantedOfArchive) -> ArchivedSnapshot | None:
    fitting = [
        each for each in manifest.snapshots if wanted.takes(each.cut_revision, each.timestamp)
    ]
    if not wanted.generation:
        return fitting[-1] if fitting else None
    for each in fitting:
        if each.generation == wanted.generation:
            return each
    there = ", ".join(str(each.generation) for each in fitting) or "none"
    raise OutOfArchive(
        f"the archive has no snapshot {wanted.generation} before the end that is wanted; there:"
        f" {there}",
        "see `viewstamp archive list`",
    )


def _nothing(objects: ArchiveObjects, manifest: ArchiveManifest) -> OutOfArchive:
    return OutOfArchive(
        f"{objects.store.place} has nothing up to the end that is wanted: {_reach(manifest)}",
        "give a later --to-revision or --to-time, or none",
    )


def _reach(manifest: ArchiveManifest) -> str:
    revisions = [each.cut_revision for each in manifest.snapshots[:1]]
    if manifest.parts and manifest.parts[0].first_op == 1:
        revisions.append(manifest.parts[0].first_revision)
    return f"it begins at revision {min(revisions)}" if revisions else "it is empty"


class Staging:
    """The directory that a restore is fetched into."""

    def __init__(self, objects: ArchiveObjects, directory: Path) -> None:
        self._objects = objects
        self._directory = directory
        self.files = 0
        self.files_kept = 0
        self.lost = ""

    def fetch(
        self,
        plan: StagingPlan,
        told: Told,
        bytes_max: int = STAGED_BYTES_MAX,
        *,
        accept_gaps: bool = False,
    ) -> None:
        """Return once all files of a plan are there. Raises OutOfArchive, ArchiveError, OSError.

        With `accept_gaps` the log ends before the first piece that is missing or damaged, which
        `lost` tells.
        """
        if plan.needed_bytes > bytes_max:
            raise OutOfArchive(
                f"{plan.needed_bytes} bytes would be fetched to {self._directory}, more than"
                f" {bytes_max}",
                f"give --staging-bytes {plan.needed_bytes}, if the disk has the room",
            )
        self.lost = plan.lost
        self._check_is_ours()
        for name in ("", LAYERS, MANIFESTS, STAGED_LOG):
            (self._directory / name).mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        layers = self._snapshot(plan)
        self._remove_others(plan, layers)
        self._layers(layers, told)
        self._pieces(plan, told, accept_gaps=accept_gaps)
        for name in (LAYERS, MANIFESTS, STAGED_LOG):
            sync_directory(self._directory / name)

    def _check_is_ours(self) -> None:
        """Mark a new directory, and refuse one that somebody else made: files of it are removed."""
        marker = self._directory / STAGED_MARKER
        if self._directory.exists() and not marker.exists() and any(self._directory.iterdir()):
            raise OutOfArchive(
                f"{self._directory} is there, and no earlier fetch made it",
                "move it away, or restore --into another directory",
            )
        self._directory.mkdir(parents=True, exist_ok=True, mode=DIRECTORY_MODE)
        marker.touch(mode=FILE_MODE)

    def _snapshot(self, plan: StagingPlan) -> list[LayerReference]:
        """Write the manifest, which is small, and return its layers."""
        if plan.snapshot is None:
            return []
        try:
            manifest = read_snapshot_manifest(self._objects, plan.snapshot)
        except FormatError as error:
            raise PieceMissing(f"snapshot {plan.snapshot.generation}: {error}") from error
        path = self._directory / MANIFESTS / manifest_name(plan.snapshot.generation)
        _write(path, encode_manifest(manifest))
        return layers_of(manifest)

    def _remove_others(self, plan: StagingPlan, layers: Iterable[LayerReference]) -> None:
        """Remove what an earlier fetch with another end has left."""
        wanted = {_piece_path(part) for part in plan.pieces}
        wanted |= {f"{LAYERS}/{layer_name(layer.digest)}" for layer in layers}
        if plan.snapshot is not None:
            wanted.add(f"{MANIFESTS}/{manifest_name(plan.snapshot.generation)}")
        for path in self._staged():
            if path.relative_to(self._directory).as_posix() not in wanted:
                path.unlink()

    def _staged(self) -> Iterator[Path]:
        for name in (LAYERS, MANIFESTS, STAGED_LOG):
            yield from sorted((self._directory / name).iterdir())

    def _layers(self, layers: list[LayerReference], told: Told) -> None:
        for done, layer in enumerate(layers, start=1):
            path = self._directory / LAYERS / layer_name(layer.digest)
            self.files += 1
            if path.exists() and _digest_of(path) == layer.digest:
                self.files_kept += 1
            else:
                self._objects.fetch_layer(layer, path)
                with temporary_of(path).open("rb+") as file:
                    publish(file, path)
            told("layers", done, len(layers))

    def _pieces(self, plan: StagingPlan, told: Told, *, accept_gaps: bool) -> None:
        for done, part in enumerate(plan.pieces, start=1):
            try:
                self._piece(part)
            except (PieceMissing, PieceDamaged) as error:
                if not accept_gaps:
                    raise
                self.lost = error.message
                for later in plan.pieces[done - 1 :]:
                    (self._directory / _piece_path(later)).unlink(missing_ok=True)
                return
            told("pieces", done, len(plan.pieces))

    def _piece(self, part: LogPart) -> None:
        path = self._directory / _piece_path(part)
        self.files += 1
        if path.exists() and _is_piece(path, part):
            self.files_kept += 1
            return
        _write(path, encode_piece(self._objects.piece(part)))


def _piece_path(part: LogPart) -> str:
    return f"{STAGED_LOG}/{part.first_op:020d}-{part.last_op:020d}.piece"


def _is_piece(path: Path, part: LogPart) -> bool:
    try:
        header = decode_piece(path.read_bytes()).header
    except FormatError:
        return False
    return (header.parent, header.last_checksum) == (part.parent, part.last_checksum)


def _digest_of(path: Path) -> bytes:
    with path.open("rb") as file:
        return file_digest(iter(lambda: file.read(READ_BYTES), b""))


def _write(path: Path, data: bytes) -> None:
    temporary = temporary_of(path)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        publish(file, path)
