"""Encryption of an archive's objects: `viewstamp.format.sealed_object` says what the bytes mean."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from blake3 import blake3

from viewstamp.archive.archive_errors import (
    UPGRADE,
    NewerArchive,
    PieceDamaged,
    StoreUnfit,
    WrongKey,
)
from viewstamp.format import FormatError, FormatVersionError
from viewstamp.format.sealed_object import (
    CHUNK_BYTES,
    KEY_ID_BYTES,
    SALT_BYTES,
    SEALED_HEADER_BYTES,
    SealedObjectHeader,
    decode_sealed_header,
    encode_sealed_header,
    is_sealed,
    nonce_of,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 32
_KEY_FILE_BYTES_MAX: Final = 4_096
_OTHERS_MAY_READ: Final = 0o007
_OBJECT_INFORMATION: Final = b"viewstamp archive object"
_KEY_ID_CONTEXT: Final = "viewstamp 2026 archive key id"


@dataclass(frozen=True, slots=True)
class ArchiveKey:
    """A key of 32 bytes, and the id that objects name it by."""

    secret: bytes
    source: str

    @property
    def key_id(self) -> bytes:
        """16 bytes that lead to no key."""
        hasher = blake3(self.secret, derive_key_context=_KEY_ID_CONTEXT)
        return hasher.digest(length=KEY_ID_BYTES)

    def __repr__(self) -> str:
        return f"ArchiveKey({self.key_id.hex()} of {self.source})"


def read_keys(paths: tuple[Path, ...]) -> tuple[ArchiveKey, ...]:
    """Return the keys of files, the first for writing. Raises StoreUnfit, OSError."""
    return tuple(_read_key(path) for path in paths)


def _read_key(path: Path) -> ArchiveKey:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read(_KEY_FILE_BYTES_MAX).decode("ascii", "replace").strip()
    if mode & _OTHERS_MAY_READ:
        raise StoreUnfit(f"everybody may read the key in {path}", f"chmod 600 {path}")
    digits = 2 * KEY_BYTES
    if len(text) != digits or any(each not in "0123456789abcdef" for each in text.lower()):
        raise StoreUnfit(
            f"{path} holds no key: {digits} hexadecimal digits",
            f"viewstamp keygen {path}",
        )
    return ArchiveKey(bytes.fromhex(text), str(path))


class Sealing:
    """Encrypts with the first key, and decrypts with any. Without keys nothing is encrypted."""

    def __init__(self, keys: tuple[ArchiveKey, ...] = ()) -> None:
        """Raise StoreUnfit if keys are given and the library is not there."""
        self._keys = keys
        if keys:
            _library()

    @property
    def is_on(self) -> bool:
        """Whether what is written is encrypted."""
        return bool(self._keys)

    def sealed(self, data: bytes) -> bytes:
        """Return the bytes to store; with a key, other ones each time."""
        if not self._keys:
            return data
        chunks = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
        return b"".join(self._encrypted(iter(chunks or [b""])))

    def seal_file(self, source: IO[bytes], target: IO[bytes]) -> None:
        """Write what a file holds as it is to be stored."""
        chunks = iter(lambda: source.read(CHUNK_BYTES), b"")
        for part in self._encrypted(chunks) if self._keys else chunks:
            target.write(part)

    def opened(self, data: bytes, name: str) -> bytes:
        """Return the content of stored bytes. Raises WrongKey, PieceDamaged, NewerArchive."""
        if not is_sealed(data):
            return data
        header = self._header(data, name)
        size = header.stored_chunk_bytes()
        body = data[SEALED_HEADER_BYTES:]
        chunks = [body[at : at + size] for at in range(0, len(body), size)]
        return b"".join(self._decrypted(header, iter(chunks), name))

    def open_file(self, source: IO[bytes], target: IO[bytes], name: str) -> None:
        """Write the content of a stored file. Raises WrongKey, PieceDamaged, NewerArchive."""
        start = source.read(SEALED_HEADER_BYTES)
        if not is_sealed(start):
            target.write(start)
            parts = iter(lambda: source.read(CHUNK_BYTES), b"")
        else:
            header = self._header(start, name)
            size = header.stored_chunk_bytes()
            parts = self._decrypted(header, iter(lambda: source.read(size), b""), name)
        for part in parts:
            target.write(part)

    def _encrypted(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        key = self._keys[0]
        header = SealedObjectHeader(key.key_id, secrets.token_bytes(SALT_BYTES))
        encoded = encode_sealed_header(header)
        cipher = _cipher(key, header.salt)
        yield encoded
        number, chunk = 0, next(chunks, b"")
        while True:
            following = next(chunks, None)
            nonce = nonce_of(number, is_last=following is None)
            yield cipher.encrypt(nonce, chunk, encoded)
            if following is None:
                return
            number, chunk = number + 1, following

    def _header(self, data: bytes, name: str) -> SealedObjectHeader:
        try:
            return decode_sealed_header(data)
        except FormatVersionError as error:
            raise NewerArchive(f"{name}: {error}", UPGRADE) from error
        except FormatError as error:
            raise PieceDamaged(f"{name}: {error}") from error

    def _decrypted(
        self, header: SealedObjectHeader, chunks: Iterator[bytes], name: str
    ) -> Iterator[bytes]:
        from cryptography.exceptions import InvalidTag

        cipher = _cipher(self._key_of(header, name), header.salt)
        encoded = encode_sealed_header(header)
        number, chunk = 0, next(chunks, b"")
        while True:
            following = next(chunks, None)
            nonce = nonce_of(number, is_last=following is None)
            try:
                yield cipher.decrypt(nonce, chunk, encoded)
            except (InvalidTag, ValueError) as error:
                raise PieceDamaged(
                    f"{name}: chunk {number} does not decrypt: bytes were changed, lost or moved"
                ) from error
            if following is None:
                return
            number, chunk = number + 1, following

    def _key_of(self, header: SealedObjectHeader, name: str) -> ArchiveKey:
        for key in self._keys:
            if key.key_id == header.key_id:
                _library()
                return key
        given = ", ".join(f"{key.key_id.hex()} ({key.source})" for key in self._keys) or "none"
        raise WrongKey(
            f"{name} is encrypted with key {header.key_id.hex()}; given: {given}",
            "give the file of this key, too: --archive-key-file may be repeated",
        )


def _library() -> None:
    """Raise StoreUnfit if the library that encrypts is not there."""
    try:
        import cryptography  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        raise StoreUnfit(
            "encryption needs the library cryptography", "pip install viewstamp[archive]"
        ) from error


def _cipher(key: ArchiveKey, salt: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    derived = HKDF(SHA256(), KEY_BYTES, salt, _OBJECT_INFORMATION).derive(key.secret)
    return AESGCM(derived)
