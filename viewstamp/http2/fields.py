"""Sections of fields, as messages have them, and whether they are well formed.

The rules are those of RFC 9113, sections 8.2 and 8.3. Whoever breaks one has made a malformed
message, which ends its stream.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

Field = tuple[bytes, bytes]
"""Name and value, as bytes."""

FIELD_OVERHEAD_BYTES: Final = 32
"""What a field counts beside its name and value (RFC 9113, section 6.5.2)."""


class MessagePart(Enum):
    """Which part of a message a section is."""

    REQUEST = "request"
    RESPONSE = "response"
    TRAILERS = "trailers"


# The pseudo-fields that a part must have, and those that it may have.
_REQUIRED: Final = {
    MessagePart.REQUEST: frozenset({b":method", b":scheme", b":path"}),
    MessagePart.RESPONSE: frozenset({b":status"}),
    MessagePart.TRAILERS: frozenset[bytes](),
}
_ALLOWED: Final = {
    MessagePart.REQUEST: _REQUIRED[MessagePart.REQUEST] | {b":authority"},
    MessagePart.RESPONSE: _REQUIRED[MessagePart.RESPONSE],
    MessagePart.TRAILERS: frozenset[bytes](),
}
# What belongs to one connection of HTTP/1 has no meaning here.
_OF_A_CONNECTION: Final = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
)
# The characters of a token, without capital letters (RFC 9110, section 5.6.2).
_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
# No NUL, CR or LF.
_VALUE: Final = re.compile(rb"[^\x00\r\n]*")
_STATUS: Final = re.compile(rb"[1-5][0-9][0-9]")
_CONTENT_LENGTH: Final = b"content-length"
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")


class FieldSection:
    """Fields of one part of a message. It is the same object for equal blocks of a connection.

    `flaw` says what makes the message malformed; it is empty if nothing does. `memo` is for the
    layer above: what it made of these fields. Where `head` is a section, this one has its fields
    and then those of `rest`, and whatever holds of the head can be kept with it.
    """

    __slots__ = (
        "content_length",
        "fields",
        "flaw",
        "head",
        "memo",
        "part",
        "pseudo",
        "rest",
        "size_bytes",
    )

    def __init__(self, part: MessagePart, fields: Sequence[Field]) -> None:
        fields = _stripped(fields)
        self.part = part
        self.pseudo = {name: value for name, value in fields if name[:1] == b":"}
        self.fields = tuple([(name, value) for name, value in fields if name[:1] != b":"])
        self.head: FieldSection | None = None
        self.rest = self.fields
        self.size_bytes = _size_of(fields)
        self.flaw = _flaw_of(part, fields)
        self.content_length = _content_length(self.fields) if not self.flaw else None
        self.memo: Any = None

    def followed_by(self, fields: Sequence[Field]) -> FieldSection:
        """Return a section with more fields behind these. This one must have no flaw."""
        if not fields:
            return self
        if b":" in [name[:1] for name, _ in fields]:
            return FieldSection(self.part, [*self.pseudo.items(), *self.fields, *fields])
        longer = FieldSection.__new__(FieldSection)
        longer._follow(self, _stripped(fields))
        return longer

    def _follow(self, head: FieldSection, rest: list[Field]) -> None:
        self.part, self.pseudo, self.head, self.memo = head.part, head.pseudo, head, None
        self.rest = tuple(rest)
        self.fields = head.fields + self.rest
        self.size_bytes = head.size_bytes + _size_of(rest)
        self.flaw = next(filter(None, [_flaw_of_field(name, value) for name, value in rest]), "")
        self.content_length = None if self.flaw else head.content_length
        if _CONTENT_LENGTH in dict(rest) and not self.flaw:
            self.content_length = _content_length(self.fields)

    def __repr__(self) -> str:
        return f"<{self.part.value} {self.pseudo} {self.fields} {self.flaw}>"

    @property
    def is_informational(self) -> bool:
        """Whether it is a response that another one follows (RFC 9110, section 15.2)."""
        return self.part is MessagePart.RESPONSE and self.pseudo.get(b":status", b"")[:1] == b"1"


def _stripped(fields: Sequence[Field]) -> list[Field]:
    """Widely used peers send white space around values; here it means nothing."""
    return [(name, value.strip(b" \t")) for name, value in fields]


def _size_of(fields: Sequence[Field]) -> int:
    return sum([len(name) + len(value) + FIELD_OVERHEAD_BYTES for name, value in fields])


def _flaw_of(part: MessagePart, fields: Sequence[Field]) -> str:
    seen: set[bytes] = set()
    is_past_pseudo = False
    for name, value in fields:
        if name[:1] != b":":
            is_past_pseudo = True
            flaw = _flaw_of_field(name, value)
        elif is_past_pseudo:
            flaw = f"the pseudo-field {name!r} comes after others"
        elif name in seen:
            flaw = f"the pseudo-field {name!r} comes twice"
        elif name not in _ALLOWED[part]:
            flaw = f"{part.value} has the pseudo-field {name!r}"
        else:
            flaw = "" if _VALUE.fullmatch(value) else f"the value of {name!r} is malformed"
        if flaw:
            return flaw
        seen.add(name)
    missing = _REQUIRED[part] - seen
    if missing:
        return f"{part.value} lacks {min(missing)!r}"
    return _flaw_of_pseudo(part, dict(fields))


def _flaw_of_field(name: bytes, value: bytes) -> str:
    if not _NAME.fullmatch(name):
        return f"the field name {name!r} is malformed"
    if not _VALUE.fullmatch(value):
        return f"the value of {name!r} is malformed"
    if name in _OF_A_CONNECTION:
        return f"the field {name!r} belongs to a connection of HTTP/1"
    if name == b"te" and value != b"trailers":
        return f"the field b'te' is {value!r}, and may only be b'trailers'"
    if name == _CONTENT_LENGTH and not _LENGTH.fullmatch(value):
        return f"the field b'content-length' is {value!r}"
    return ""


def _flaw_of_pseudo(part: MessagePart, values: dict[bytes, bytes]) -> str:
    if part is MessagePart.REQUEST and not values[b":path"]:
        return "the path is empty"
    if part is MessagePart.RESPONSE and not _STATUS.fullmatch(values[b":status"]):
        return f"the status is {values[b':status']!r}"
    return ""


def _content_length(fields: Sequence[Field]) -> int | None:
    lengths = {value for name, value in fields if name == _CONTENT_LENGTH}
    return int(min(lengths)) if lengths else None
