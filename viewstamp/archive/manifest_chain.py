"""The manifests of an archive: which is the newest, and how the next one is written."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from viewstamp.archive.archive_errors import (
    UPGRADE,
    NewerArchive,
    NoArchive,
    PieceDamaged,
    StoreUnfit,
    StoreUnreachable,
    WrongKey,
)
from viewstamp.archive.archive_objects import (
    MANIFESTS,
    ArchiveObjects,
    archive_name,
    missing,
    number_of,
)
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.archive_manifest import ArchiveManifest, decode_archive, encode_archive
from viewstamp.format.sealed_object import is_sealed

# Older manifests are deleted as newer ones are written: readers have read theirs long since.
MANIFESTS_KEPT: Final = 64
PROBE_NAME: Final = "manifests/probe"
_log = logging.getLogger(__name__)
_PROBE: Final = b"viewstamp asks whether a name that is taken can be written once more\n"


def protected_numbers(manifest: ArchiveManifest) -> set[int]:
    """Return manifests that stay: the last one to name what was given up, and the one after it.

    The time when the latter was written says when the time of grace began.
    """
    return {each for number, _ in manifest.drops for each in (number, number + 1)}


@dataclass(frozen=True, slots=True)
class KnownManifest:
    """A manifest, and the BLAKE3 of its bytes, by which the next one names it."""

    manifest: ArchiveManifest
    digest: bytes


@dataclass(frozen=True, slots=True)
class ManifestChain:
    """The manifests of one archive.

    With a key, a manifest that is not encrypted is refused, since anybody who can write to the
    store could have made it; `accept_plain` takes it, once, when encryption begins.
    """

    objects: ArchiveObjects
    accept_plain: bool = False

    def newest_number(self) -> int:
        """Return the number of the newest manifest, 0 if there is none.

        A listing may lack the newest ones, so the numbers behind it are asked for by name.
        """
        numbers = (number_of(found.name) for found in self.objects.store.objects(MANIFESTS))
        newest = max((number for number in numbers if number), default=0)
        while self.objects.store.look(archive_name(newest + 1)) is not None:
            newest += 1
        return newest

    def newest(self) -> KnownManifest | None:
        """Return the newest manifest, None if there is none. Raises ArchiveError."""
        number = self.newest_number()
        return self.read(number) if number else None

    def wanted(self, number: int = 0) -> KnownManifest:
        """Return a manifest, 0 for the newest. Raises NoArchive, ArchiveError."""
        found = self.read(number) if number else self.newest()
        if found is None:
            raise NoArchive(
                f"there is no archive in {self.objects.store.place}",
                "give the place that a shipper was given: s3://BUCKET/PREFIX, or a directory",
            )
        return found

    def read(self, number: int) -> KnownManifest:
        """Return a manifest. Raises PieceMissing, PieceDamaged, NewerArchive, WrongKey."""
        name = archive_name(number)
        stored = self.objects.store.get(name)
        if stored is None:
            raise missing(self.objects.store, name)
        return self.decoded(number, stored)

    def decoded(self, number: int, stored: bytes) -> KnownManifest:
        """Return the manifest that stored bytes are. Raises ArchiveError."""
        name = archive_name(number)
        if self.objects.sealing.is_on and not is_sealed(stored) and not self.accept_plain:
            raise WrongKey(
                f"{name} is not encrypted, and a key was given: whoever can write to the store may"
                " have made it",
                "if encryption begins only now, give --accept-plain once; else leave out the key",
            )
        data = self.objects.sealing.opened(stored, name)
        try:
            manifest = decode_archive(data)
        except FormatVersionError as error:
            raise NewerArchive(f"{name}: {error}", UPGRADE) from error
        except FormatError as error:
            raise PieceDamaged(
                f"{name} in {self.objects.store.place}: {error}",
                "--manifest with the number before it takes an older one",
            ) from error
        if manifest.number != number:
            raise PieceDamaged(f"{name} is manifest {manifest.number} under another name")
        return KnownManifest(manifest, blake3(data).digest())

    def write(self, manifest: ArchiveManifest) -> KnownManifest | None:
        """Write the next manifest; None if somebody else has written one meanwhile.

        A shipper that slept may find its number free again, since older ones are deleted. So only
        the newest number counts, and a manifest below it is taken back.
        """
        data = encode_archive(manifest)
        name = archive_name(manifest.number)
        store = self.objects.store
        stored = self.objects.sealing.sealed(data)
        if not store.create(name, stored):
            return None
        self.objects.check_stored(name, len(stored))
        digest = blake3(data).digest()
        if self.newest_number() != manifest.number:
            if self._went_on(manifest.number + 1, digest):
                return KnownManifest(manifest, digest)
            store.delete(name)
            return None
        outdated = manifest.number - MANIFESTS_KEPT
        if outdated > 0 and outdated not in protected_numbers(manifest):
            try:
                store.delete(archive_name(outdated))
            except StoreUnreachable as error:
                # It is written. The collection of garbage deletes older ones, too.
                _log.warning("manifest %d is not deleted: %s", outdated, error.message)
        return KnownManifest(manifest, digest)

    def _went_on(self, number: int, digest: bytes) -> bool:
        """Return whether a manifest names these bytes as the one before it."""
        stored = self.objects.store.get(archive_name(number))
        return stored is not None and self.decoded(number, stored).manifest.previous == digest

    def check_store(self) -> None:
        """Raise StoreUnfit unless the store refuses to write a taken name once more."""
        store = self.objects.store
        if store.look(PROBE_NAME) is None:
            store.put(PROBE_NAME, _PROBE)
        if store.create(PROBE_NAME, _PROBE[::-1]):
            raise StoreUnfit(
                f"{store.place} writes a name that is taken (it ignores If-None-Match): two"
                " shippers would overwrite each other's manifests",
                "use a store that knows conditional writes, or a directory",
            )
