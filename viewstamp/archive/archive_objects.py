"""Objects of an archive by what they are: their names, encrypted on request, checked when read.

====================================== =========================================================
name                                   object
====================================== =========================================================
manifests/NUMBER.archive               a manifest of the archive (`format.archive_manifest`)
log/FIRST-LAST-DIGEST.piece            entries (`format.archive_piece`)
indexes/FIRST-LAST-DIGEST.index        parts (`format.archive_parts`)
snapshots/GENERATION-DIGEST.manifest   the manifest of a snapshot (`format.manifest`)
layers/DIGEST.layer                    a layer of snapshots (`format.layer`)
====================================== =========================================================

Numbers have 20 digits. A digest is BLAKE3 of the object as it is stored, in 64 hexadecimal digits;
that of a layer is of its content. So one name never stands for two contents, and what is written
again after a crash harms nobody.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from viewstamp.api.snapshots.v1.manifest_pb2 import LayerReference
from viewstamp.archive.archive_errors import (
    UPGRADE,
    NewerArchive,
    PieceDamaged,
    PieceMissing,
    StoreUnreachable,
)
from viewstamp.archive.object_store import ObjectStore
from viewstamp.archive.sealing import Sealing
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.archive_manifest import ArchivedSnapshot
from viewstamp.format.archive_parts import LogPart, decode_index
from viewstamp.format.archive_piece import LogPiece, decode_piece
from viewstamp.format.layer import file_digest
from viewstamp.format.manifest import layer_name
from viewstamp.format.sealed_object import sealed_bytes
from viewstamp.snapshots.durable import temporary_of

MANIFESTS: Final = "manifests/"
LOG: Final = "log/"
INDEXES: Final = "indexes/"
SNAPSHOTS: Final = "snapshots/"
LAYERS: Final = "layers/"
# All that a collection of garbage looks through.
COLLECTED: Final = (LOG, INDEXES, SNAPSHOTS, LAYERS)
READ_BYTES: Final = 1024 * 1024

_MANIFEST_NAME: Final = re.compile(r"manifests/([0-9]{20})\.archive")
_UNFINISHED_NAME: Final = re.compile(r"[a-z]+/\.unfinished-[0-9a-f]{16}")
_OWN_NAME: Final = re.compile(
    r"log/[0-9]{20}-[0-9]{20}-[0-9a-f]{64}\.piece"
    r"|indexes/[0-9]{20}-[0-9]{20}-[0-9a-f]{64}\.index"
    r"|snapshots/[0-9]{20}-[0-9a-f]{64}\.manifest"
    r"|layers/[0-9a-f]{64}\.layer"
)


def is_unfinished(name: str) -> bool:
    """Return whether a name is one under which a directory store writes."""
    return _UNFINISHED_NAME.fullmatch(name) is not None


def is_own_name(name: str) -> bool:
    """Return whether only a shipper gives such a name. Others' objects are nobody's garbage."""
    return _OWN_NAME.fullmatch(name) is not None or is_unfinished(name)


def archive_name(number: int) -> str:
    """Return the name of a manifest of the archive."""
    return f"{MANIFESTS}{number:020d}.archive"


def number_of(name: str) -> int | None:
    """Return the number in the name of a manifest, None for any other name."""
    match = _MANIFEST_NAME.fullmatch(name)
    return int(match[1]) if match else None


def part_name(part: LogPart) -> str:
    """Return the name of a piece or an index."""
    place, kind = (LOG, "piece") if part.is_piece else (INDEXES, "index")
    return f"{place}{part.first_op:020d}-{part.last_op:020d}-{part.digest.hex()}.{kind}"


def snapshot_name(snapshot: ArchivedSnapshot) -> str:
    """Return the name of the manifest of a snapshot."""
    return f"{SNAPSHOTS}{snapshot.generation:020d}-{snapshot.digest.hex()}.manifest"


def archived_layer_name(reference: LayerReference) -> str:
    """Return the name of a layer."""
    return LAYERS + layer_name(reference.digest)


@dataclass(frozen=True, slots=True)
class ArchiveObjects:
    """The objects of one archive."""

    store: ObjectStore
    sealing: Sealing

    def put_checked(self, name: str, data: bytes) -> None:
        """Store bytes, and ask the store what it has. Raises StoreUnreachable."""
        self.store.put(name, data)
        self.check_stored(name, len(data))

    def check_stored(self, name: str, stored_bytes: int) -> None:
        """Raise StoreUnreachable unless the store says that it has an object of this size."""
        found = self.store.look(name)
        if found is None or found.stored_bytes != stored_bytes:
            what = "nothing" if found is None else f"{found.stored_bytes} bytes"
            raise StoreUnreachable(
                f"{self.store.place} took {stored_bytes} bytes of {name}, and has {what}",
                "look at the store: it loses what it has accepted",
            )

    def index(self, part: LogPart) -> tuple[LogPart, ...]:
        """Return the parts of an index. Raises ArchiveError."""
        name = part_name(part)
        data = self._content(name, part.digest, part.stored_bytes)
        try:
            parts = decode_index(data)
        except FormatError as error:
            raise _unreadable(name, error) from error
        if (parts[0].first_op, parts[-1].last_op) != (part.first_op, part.last_op):
            raise PieceDamaged(f"{name} is an index of other ops than its name says")
        return parts

    def piece(self, part: LogPart) -> LogPiece:
        """Return the entries of a piece. Raises ArchiveError."""
        name = part_name(part)
        data = self._content(name, part.digest, part.stored_bytes)
        try:
            piece = decode_piece(data)
        except FormatError as error:
            raise _unreadable(name, error) from error
        header = piece.header
        found = (header.first_op, header.last_op, header.parent, header.last_checksum)
        if found != (part.first_op, part.last_op, part.parent, part.last_checksum):
            raise PieceDamaged(f"{name} holds other entries than the manifest says")
        return piece

    def snapshot_manifest(self, snapshot: ArchivedSnapshot) -> bytes:
        """Return the bytes of a snapshot's manifest. Raises ArchiveError."""
        return self._content(snapshot_name(snapshot), snapshot.digest, snapshot.stored_bytes)

    def fetch_layer(self, reference: LayerReference, path: Path) -> None:
        """Write a layer to a file under its temporary name, and verify it. Raises ArchiveError."""
        name, stored = archived_layer_name(reference), path.with_name(f".{path.name}.stored")
        try:
            if self.store.look(name) is None:
                raise missing(self.store, name)
            if not self.has_layer(reference):
                raise PieceDamaged(f"{name} in {self.store.place} is of another size")
            if not self.store.get_file(name, stored):
                raise missing(self.store, name)
            with stored.open("rb") as source, temporary_of(path).open("wb") as target:
                self.sealing.open_file(source, target, name)
        finally:
            stored.unlink(missing_ok=True)
        with temporary_of(path).open("rb") as file:
            digest = file_digest(iter(lambda: file.read(READ_BYTES), b""))
        if digest != reference.digest:
            temporary_of(path).unlink()
            raise PieceDamaged(f"{name} in {self.store.place} was changed: digest {digest.hex()}")

    def has_layer(self, reference: LayerReference) -> bool:
        """Return whether the store has a layer, encrypted or not, of the right size."""
        found = self.store.look(archived_layer_name(reference))
        size = reference.size_bytes
        return found is not None and found.stored_bytes in (size, sealed_bytes(size))

    def _content(self, name: str, digest: bytes, stored_bytes: int) -> bytes:
        data = self.store.get(name)
        if data is None:
            raise missing(self.store, name)
        if len(data) != stored_bytes:
            raise PieceDamaged(
                f"{name} in {self.store.place} has {len(data)} bytes instead of {stored_bytes}",
                "look for another copy of the archive",
            )
        if blake3(data).digest() != digest:
            raise PieceDamaged(
                f"{name} in {self.store.place} was changed", "look for another copy of the archive"
            )
        return self.sealing.opened(data, name)


def missing(store: ObjectStore, name: str) -> PieceMissing:
    """Return the error for an object that a manifest names and nobody has."""
    return PieceMissing(
        f"{store.place} has no {name}, which a manifest names",
        "`viewstamp archive verify` says what can be restored without it",
    )


def _unreadable(name: str, error: FormatError) -> PieceDamaged | NewerArchive:
    if isinstance(error, FormatVersionError):
        return NewerArchive(f"{name}: {error}", UPGRADE)
    return PieceDamaged(f"{name}: {error}")
