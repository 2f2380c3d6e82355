"""Metadata as fields and back: binary values, timeouts, statuses and their texts.

The rules are those of gRPC's description of its protocol over HTTP/2.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias
from urllib.parse import quote_from_bytes, unquote_to_bytes

import grpc

from viewstamp.http2 import Field

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]

CODES: Final[dict[int, grpc.StatusCode]] = {code.value[0]: code for code in grpc.StatusCode}
"""Statuses by their numbers."""
_BINARY: Final = b"-bin"
# What belongs to the protocol, and is no metadata of the caller's.
_OF_THE_PROTOCOL: Final = frozenset({b"te", b"content-type", b"grpc-message", b"grpc-status"})
_PROTOCOL_PREFIX: Final = b"grpc-"
_DETAILS: Final = b"grpc-status-details-bin"
# What may stand in a text as it is; all else is escaped.
_PLAIN: Final = "".join(chr(number) for number in range(0x20, 0x7F) if chr(number) != "%")
# White space at the ends of a value would be taken away on the way.
_OUTER_SPACE: Final = re.compile("^ | $")
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_NS: Final = {
    b"H": 3_600_000_000_000,
    b"M": 60_000_000_000,
    b"S": 1_000_000_000,
    b"m": 1_000_000,
    b"u": 1_000,
    b"n": 1,
}
_NS_PER_S: Final = 1_000_000_000
_DIGITS_MAX: Final = 99_999_999
# How many binary values of one field are read.
_JOINED_MAX: Final = 16
_STATUS_DIGITS_MAX: Final = 3


def fields_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> list[Field]:
    """Return metadata as fields. Raises ValueError, TypeError for what no field can be."""
    return [_field(key, value) for key, value in metadata or ()]


def _field(key: str, value: str | bytes) -> Field:
    name = key.encode("ascii")
    if name.endswith(_BINARY):
        data = value if isinstance(value, bytes) else value.encode()
        return name, b64encode(data).rstrip(b"=")
    text = value if isinstance(value, bytes) else value.encode("ascii")
    return name, text.strip(b" ")


def metadata_of(fields: Iterable[Field]) -> Metadata:
    """Return what a peer has sent beside what belongs to the protocol."""
    return tuple(
        (name.decode("ascii"), value)
        for name, field in fields
        if not _is_of_the_protocol(name)
        for value in _values(name, field)
    )


def _is_of_the_protocol(name: bytes) -> bool:
    if name == _DETAILS:
        return False
    return name in _OF_THE_PROTOCOL or name.startswith(_PROTOCOL_PREFIX)


def _values(name: bytes, field: bytes) -> list[str] | list[bytes]:
    if not name.endswith(_BINARY):
        return [field.decode("latin-1")]
    # Several values may have been joined into one field, each with padding or without.
    values = field.split(b",", _JOINED_MAX)
    return [_decoded(value.strip()) for value in values[:_JOINED_MAX]]


def _decoded(value: bytes) -> bytes:
    try:
        return b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except ValueError:
        return b""


# --- Timeouts ---


def timeout_field(timeout_s: float) -> bytes:
    """Return a timeout with as many digits as there may be, rounded up."""
    left_ns = max(0, int(timeout_s * _NS_PER_S))
    for unit in reversed(_UNIT_NS):
        count = -(-left_ns // _UNIT_NS[unit])
        if count <= _DIGITS_MAX:
            return b"%d%b" % (count, unit)
    return b"%dH" % _DIGITS_MAX


def timeout_s_of(value: bytes) -> float | None:
    """Return a timeout in seconds, None if it is none."""
    found = _TIMEOUT.fullmatch(value)
    return int(found[1]) * _UNIT_NS[found[2]] / _NS_PER_S if found else None


# --- Statuses ---


def status_fields(code: grpc.StatusCode, details: str, metadata: Metadata) -> list[Field]:
    """Return the trailers of a call."""
    fields = [(b"grpc-status", b"%d" % code.value[0])]
    if details:
        text = quote_from_bytes(details.encode(errors="replace"), _PLAIN)
        fields.append((b"grpc-message", _OUTER_SPACE.sub("%20", text).encode()))
    return fields + fields_of(metadata)


def status_of(fields: Iterable[Field]) -> tuple[grpc.StatusCode, str] | None:
    """Return code and details of trailers, None if they have no code."""
    found = dict(fields)
    number = found.get(b"grpc-status")
    if number is None:
        return None
    is_code = number.isdigit() and len(number) <= _STATUS_DIGITS_MAX
    code = CODES.get(int(number)) if is_code else None
    text = unquote_to_bytes(found.get(b"grpc-message", b"")).decode(errors="replace")
    return code or grpc.StatusCode.UNKNOWN, text
