"""A request as the audit log and `viewstamp log` tell it: set fields, bounded, without secrets."""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

# Characters recorded of one text, and of a whole request, where every value counts a little.
TEXT_CHARACTERS_MAX: Final = 256
REQUEST_CHARACTERS_MAX: Final = 2_048
VALUE_CHARACTERS_MIN: Final = 8
LIST_ITEMS_MAX: Final = 8
# Stands for a secret that is set.
SECRET_MARK: Final = "<secret>"
# Fields to cache: more than all requests have together.
FIELDS_KNOWN_MAX: Final = 4_096


def told_request(kind: type[Message], encoded: bytes) -> dict[str, Any] | None:
    """Return a request without its secrets; None if it cannot be read."""
    try:
        message = kind.FromString(encoded)
    except DecodeError:
        return None
    return _Telling().plain(message)


def shown_request(kind: type[Message], encoded: bytes) -> dict[str, Any] | None:
    """Return the same for people: a mark stands for what is withheld, enum values have names."""
    try:
        message = kind.FromString(encoded)
    except DecodeError:
        return None
    return _Showing().plain(message)


class _Field(NamedTuple):
    """How a field is recorded."""

    name: str
    is_told: bool  # false for secrets, and for bytes, which may hold anything
    is_repeated: bool
    is_message: bool


@lru_cache(FIELDS_KNOWN_MAX)
def _field(descriptor: FieldDescriptor) -> _Field:
    is_bytes = descriptor.type == FieldDescriptor.TYPE_BYTES
    return _Field(
        descriptor.name,
        not is_bytes and not descriptor.GetOptions().debug_redact,
        descriptor.is_repeated,
        descriptor.message_type is not None,
    )


class _Telling:
    """Records one request, as far as there is room."""

    def __init__(self) -> None:
        self._room = REQUEST_CHARACTERS_MAX

    def plain(self, message: Message) -> dict[str, Any]:
        """Return the fields that are set and may be recorded."""
        told: dict[str, Any] = {}
        for descriptor, value in message.ListFields():
            name, is_told, is_repeated, is_message = _field(descriptor)
            if is_told and is_repeated:
                told[name] = self._list(value, is_message)
            elif is_told:
                told[name] = self._single(value, is_message)
            else:
                told |= self._withheld(descriptor, value)
        return told

    def _withheld(self, descriptor: FieldDescriptor, value: Any) -> dict[str, Any]:
        """Return what stands for a field that is not told."""
        return {}

    def _list(self, values: Any, is_message: bool) -> list[Any]:
        told = [self._single(each, is_message) for each in islice(values, LIST_ITEMS_MAX)]
        more = len(values) - len(told)
        return [*told, f"and {more} more"] if more else told

    def _single(self, value: Any, is_message: bool) -> Any:
        if self._room <= 0:
            return "..."
        self._room -= VALUE_CHARACTERS_MIN
        if is_message:
            return self.plain(value)
        if isinstance(value, str):
            told = value
            if len(value) > TEXT_CHARACTERS_MAX or len(value) > self._room:
                told = value[: max(0, min(TEXT_CHARACTERS_MAX, self._room))]
            self._room -= len(told)
            return told
        return value


class _Showing(_Telling):
    """Tells a request to people."""

    def plain(self, message: Message) -> dict[str, Any]:
        """Return the fields that may be shown, and marks for the others."""
        shown = super().plain(message)
        for descriptor, value in message.ListFields():
            enum = descriptor.enum_type
            if enum is not None and not descriptor.is_repeated:
                known = enum.values_by_number.get(value)
                shown[descriptor.name] = value if known is None else known.name
        return shown

    def _withheld(self, descriptor: FieldDescriptor, value: Any) -> dict[str, Any]:
        if descriptor.GetOptions().debug_redact:
            return {descriptor.name: SECRET_MARK}
        count = sum(map(len, value)) if descriptor.is_repeated else len(value)
        return {descriptor.name: f"<{count} bytes>"}
