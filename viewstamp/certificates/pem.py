"""The times, names and kinds of keys in PEM certificates, read from their encoding.

The standard library shows them of authorities and of a peer alone, and no library for it is among
the dependencies of a server. Whoever calls this has had OpenSSL check the file before.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

# The labels that OpenSSL takes for certificates. A trusted one has its purposes behind it.
_CERTIFICATE: Final = re.compile(
    rb"-----BEGIN (?P<label>(?:X509 |TRUSTED )?CERTIFICATE)-----(.+?)-----END (?P=label)-----",
    re.DOTALL,
)
# Tags of X.690, and the pivot of RFC 5280 for years of two digits.
_EXPLICIT_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_LONG_LENGTH: Final = 0x80
_CENTURY_PIVOT: Final = 50
# Object identifiers as they are encoded. A key of a curve has the curve beside its kind.
_ELLIPTIC: Final = bytes.fromhex("2a8648ce3d0201")
_KEYS: Final = MappingProxyType(
    {
        bytes.fromhex("2a864886f70d010101"): "RSA",
        bytes.fromhex("2a864886f70d01010a"): "RSA-PSS",
        bytes.fromhex("2b6570"): "Ed25519",
        bytes.fromhex("2b6571"): "Ed448",
        bytes.fromhex("2b81040021"): "EC P-224",
        bytes.fromhex("2a8648ce3d030107"): "EC P-256",
        bytes.fromhex("2b81040022"): "EC P-384",
        bytes.fromhex("2b81040023"): "EC P-521",
        bytes.fromhex("2b8104000a"): "EC secp256k1",
    }
)


@dataclass(frozen=True, slots=True)
class CertificateTimes:
    """From when to when a certificate is valid, in seconds since 1970, and the encoded names of
    who signed it and of whom it is."""

    begins_s: int
    ends_s: int
    issuer: bytes
    subject: bytes


def certificates_in(pem: bytes) -> tuple[CertificateTimes, ...]:
    """Return the certificates of a PEM file, in its order. Raises ValueError if one is damaged, or
    none is there."""
    return tuple(_times(_fields(each)) for each in _encoded(pem))


def first_key(pem: bytes) -> str:
    """Return the kind of the key in the first certificate of a file, for example `EC P-256`.

    A kind without a name here is told by its identifier. Raises ValueError as `certificates_in`.
    """
    _, information = _fields(_encoded(pem)[0])[5]
    (_, algorithm), *_ = _elements(information)
    (_, kind), *parameters = _elements(algorithm)
    if kind == _ELLIPTIC and parameters:
        # A curve without a name is described by its numbers, which would fill the line.
        _, kind = parameters[0]
        return _KEYS.get(kind, f"EC on the curve {kind[:16].hex()}")
    return _KEYS.get(kind, f"of the kind {kind[:16].hex()}")


def _encoded(pem: bytes) -> list[bytes]:
    found = [binascii.a2b_base64(each[2]) for each in _CERTIFICATE.finditer(pem)]
    if not found:
        raise ValueError("no PEM certificate is in the file")
    return found


def _fields(encoded: bytes) -> list[tuple[int, bytes]]:
    """Return serial number, algorithm, issuer, validity, subject, key, and what may follow."""
    (_, certificate), *_ = _elements(encoded)
    (_, signed), *_ = _elements(certificate)
    fields = list(_elements(signed))
    if fields and fields[0][0] == _EXPLICIT_VERSION:
        fields = fields[1:]
    if len(fields) < 6:
        raise ValueError("the certificate is incomplete")
    return fields


def _times(fields: list[tuple[int, bytes]]) -> CertificateTimes:
    begins, ends = _elements(fields[3][1])
    return CertificateTimes(_seconds(*begins), _seconds(*ends), fields[2][1], fields[4][1])


def _elements(encoded: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element. Raises ValueError beyond the end."""
    place = 0
    while place < len(encoded):
        header = encoded[place : place + 2]
        if len(header) < 2:
            raise ValueError("the certificate is cut off")
        tag, size_bytes = header
        place += 2
        if size_bytes & _LONG_LENGTH:
            digits = size_bytes ^ _LONG_LENGTH
            size_bytes = int.from_bytes(encoded[place : place + digits])
            place += digits
        content = encoded[place : place + size_bytes]
        if len(content) < size_bytes:
            raise ValueError("the certificate is cut off")
        yield tag, content
        place += size_bytes


def _seconds(tag: int, content: bytes) -> int:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if int(text[:2]) >= _CENTURY_PIVOT else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"a time of the certificate has the tag {tag}")
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())
