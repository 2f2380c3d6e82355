"""Certificates that are renewed while the process runs: PEM files, read again when they change.

Whoever renews replaces certificate, key and authority one after the other, or all at once behind a
symbolic link. So files can be seen that do not belong together. What was read before stays in use
until they do.

Files can hang for ever, for example on a mount whose server is away. So `Certificates.look` alone
touches them after the start, on a thread that may hang. All else is called on one thread, save what
gRPC asks for at each handshake, and takes what was read last.
"""

from __future__ import annotations

import hashlib
import logging
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from viewstamp.certificates.pem import CertificateTimes, certificates_in, first_key
from viewstamp.grpc_transport import TlsTexts
from viewstamp.telemetry import fields

# Chains and bundles have some 10 KiB. Whatever is larger is not read into memory.
FILE_BYTES_MAX: Final = 1 << 20

# gRPC signs a handshake with no other key that its other side accepts, although OpenSSL would.
# It says nothing about that when it takes a key, and each connection fails.
KEYS_OF_GRPC: Final = ("RSA", "EC P-256", "EC P-384")

_log = logging.getLogger(__name__)


class UnusableFiles(ValueError):  # noqa: N818 - reads as the sentence it is
    """Files with which no process can begin; the message says what would be right."""


@dataclass(frozen=True, slots=True)
class PemFiles:
    """Where certificate chain, key and authority are, and by which flags; `authority` is None
    where nobody is asked for a certificate."""

    flag: str
    """The flag of the certificate, for example `--tls-certificate`."""
    certificate: Path
    key: Path
    authority: Path | None = None

    @property
    def by_flag(self) -> dict[str, Path]:
        """The files, in the order in which people are told of them."""
        start = self.flag.removesuffix("certificate")
        paths = {self.flag: self.certificate, f"{start}key": self.key}
        return paths if self.authority is None else {**paths, f"{start}ca": self.authority}


@dataclass(frozen=True, slots=True)
class Expiry:
    """From when to when the certificates of a file are good, in seconds since 1970."""

    flag: str
    path: Path
    begins_s: int
    """When the last of its certificates begins."""
    ends_s: int
    """When the first of its certificates ends."""
    expires_s: int
    """When the certificate ends without which no connection comes about. Another one of a chain
    may be one that nobody needs."""

    def is_good(self, now_s: int) -> bool:
        """Whether the time does not prevent connections."""
        return self.begins_s <= now_s < self.expires_s


@dataclass(frozen=True, slots=True)
class PemContents:
    """What was read at one moment, and fits together."""

    certificate: bytes
    key: bytes
    authority: bytes | None
    expiries: tuple[Expiry, ...]


@dataclass(frozen=True, slots=True)
class RefusedFiles:
    """Bytes of files that cannot be used, by their digest, and why."""

    digest: bytes
    problem: str


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at the files has found."""

    seen: tuple[tuple[int, ...], ...]
    """By this the next look knows whether the files have changed."""
    contents: PemContents | None = None
    """What is in the files and fits together; None if they have not changed or do not fit."""
    refused: RefusedFiles | None = None


class Certificates:
    """The certificate of this process for one purpose, as it was in its files last."""

    def __init__(self, files: PemFiles) -> None:
        """Raises UnusableFiles if the files cannot be used."""
        self.files = files
        self.problem = ""
        """Why what is in the files now is not in use; empty if it is."""
        found = _read(files, _signature(files), None)
        if found.refused is not None:
            raise UnusableFiles(found.refused.problem)
        assert found.contents is not None, "the first look has nothing to compare with"
        self.contents = found.contents
        self._seen = found.seen
        self._refused: RefusedFiles | None = None

    @property
    def texts(self) -> TlsTexts:
        """What was read last, for handshakes. A caller must prove who it is if there is an
        authority."""
        contents = self.contents
        return TlsTexts(contents.authority, contents.certificate, contents.key)

    @property
    def expiries(self) -> tuple[Expiry, ...]:
        """From when to when what is in use is good: the chain, and the authority that signed it."""
        return self.contents.expiries

    def look(self) -> Look:
        """Return what is in the files if they have changed or were refused, for `take`.

        This may hang as long as the files do, so it belongs on a thread of its own. It changes
        nothing here.
        """
        refused, problem = self._refused, self.problem
        seen = _signature(self.files)
        if seen == self._seen and not problem:
            return Look(seen)
        # A repair may not show in the times of the files, so after a problem they are read again.
        return _read(self.files, seen, refused)

    def take(self, found: Look) -> None:
        """Use what was found from now on, or tell why it cannot be used."""
        self._seen = found.seen
        self._refused = found.refused
        if found.refused is not None:
            self.failed(found.refused.problem)
            return
        self.problem = ""
        if found.contents is not None and found.contents != self.contents:
            self.contents = found.contents
            _log.info("certificates were read again", extra=fields(flag=self.files.flag))

    def hangs(self, waited_ms: int) -> None:
        """Tell that a look has not returned; the next one that does reads all files again."""
        self.failed(
            complaint(self.files, f"reading them has not come to an end within {waited_ms} ms")
        )

    def failed(self, problem: str) -> None:
        """Tell why what is in the files now is not in use."""
        if problem != self.problem:
            self.problem = problem
            _log.warning("changed certificates are not in use", extra=fields(why=problem))


def _signature(files: PemFiles) -> tuple[tuple[int, ...], ...]:
    """Return what changes with the files, and with symbolic links on the way to them."""
    return tuple(_stat(path) for path in files.by_flag.values())


def _stat(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()  # reading tells why
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)


def _read(files: PemFiles, seen: tuple[tuple[int, ...], ...], refused: RefusedFiles | None) -> Look:
    """Return what is in the files; the same bytes as those refused are not checked again."""
    digest = b""
    try:
        before = _bytes(files)
        digest = _digest(before)
        if refused is not None and refused.digest == digest:
            return Look(seen, refused=refused)
        return Look(seen, _checked(files, before))
    except _ReplacedMeanwhileError as error:
        return Look(seen, refused=RefusedFiles(b"", complaint(files, error)))
    except (OSError, ValueError) as error:
        return Look(seen, refused=RefusedFiles(digest, complaint(files, error)))


class _ReplacedMeanwhileError(Exception):
    """What was read last is not what was checked."""


def _checked(files: PemFiles, before: list[bytes]) -> PemContents:
    """Return what was read. Raises OSError or ValueError unless it fits together."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")
        if files.authority is not None:
            context.load_verify_locations(files.authority)
    finally:
        # What was checked is what was read only if nobody wrote meanwhile.
        if _bytes(files) != before:
            raise _ReplacedMeanwhileError("the files are being replaced")
    certificate, key, *authority = before
    _require_known_key(files, certificate)
    return PemContents(
        certificate,
        key,
        authority[0] if authority else None,
        tuple(_expiries(files, certificate, *authority)),
    )


def _require_known_key(files: PemFiles, certificate: bytes) -> None:
    """Raise ValueError if gRPC cannot shake hands with the key of the certificate."""
    try:
        kind = first_key(certificate)
    except ValueError as error:
        # OpenSSL has accepted it, so that the fault may be here.
        _log.warning(
            "the key of a certificate is not known",
            extra=fields(path=printable(str(files.certificate)), why=str(error)),
        )
        return
    if kind not in KEYS_OF_GRPC:
        right = f"{', '.join(KEYS_OF_GRPC[:-1])} or {KEYS_OF_GRPC[-1]}"
        raise ValueError(
            f"the key of the first certificate in {files.certificate} is {kind}, and gRPC needs"
            f" {right}"
        )


def _bytes(files: PemFiles) -> list[bytes]:
    return [_limited(path) for path in files.by_flag.values()]


def _digest(contents: list[bytes]) -> bytes:
    return hashlib.sha256(b"".join(hashlib.sha256(each).digest() for each in contents)).digest()


def _limited(path: Path) -> bytes:
    # A pipe without a writer would hang, and a device would give bytes without end.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path} is no regular file")
    with path.open("rb") as file:
        found = file.read(FILE_BYTES_MAX + 1)
    if len(found) > FILE_BYTES_MAX:
        raise ValueError(f"{path} has more than {FILE_BYTES_MAX} bytes")
    return found


def _expiries(files: PemFiles, certificate: bytes, authority: bytes = b"") -> Iterator[Expiry]:
    chain = _times_in(files.certificate, certificate)
    if chain:
        yield Expiry(
            files.flag,
            files.certificate,
            max(each.begins_s for each in chain),
            min(each.ends_s for each in chain),
            chain[0].ends_s,
        )
    if files.authority is None:
        return
    # While an authority is replaced, the file has the old one and the new one. What counts is the
    # one that signed this chain; a renewed one has the same name.
    known = _times_in(files.authority, authority)
    signers = [each for each in known if chain and each.subject == chain[-1].issuer] or known
    if signers:
        last = max(signers, key=lambda each: each.ends_s)
        flag = list(files.by_flag)[-1]
        yield Expiry(flag, files.authority, last.begins_s, last.ends_s, last.ends_s)


def _times_in(path: Path, pem: bytes) -> tuple[CertificateTimes, ...]:
    """Return what is known of the certificates of a file that OpenSSL has accepted.

    What cannot be read costs the warning before the end, and not the file.
    """
    try:
        return certificates_in(pem)
    except ValueError as error:
        _log.warning(
            "the times of a certificate cannot be read, so nothing tells when it ends",
            extra=fields(path=printable(str(path)), why=str(error)),
        )
        return ()


def complaint(files: PemFiles, error: Exception | str) -> str:
    """Return which files cannot be used, why, and what would be right."""
    *first, last = (f"{flag} {path}" for flag, path in files.by_flag.items())
    right = "a PEM chain and the PEM key that belongs to it"
    if files.authority is not None:
        right = (
            "a PEM chain, the PEM key that belongs to it, and the PEM certificate of the authority"
        )
    return printable(f"{', '.join(first)} and {last} cannot be used: {error}; give {right}")


def printable(text: str) -> str:
    """Return a text with a path in it so that an alarm can hold it: any bytes can be a path."""
    return text.encode(errors="backslashreplace").decode()
