"""OTLP documents in any spelling become one line as the OTLP specification writes it.

Pure: values in, a line and what was left out of it back. Keys are told without regard to capitals
and underscores, so `trace_id` is `traceId`; the names of 2021 are known, too. Enums may be names,
numbers may be text or the other way round, and ids may be base64. A span with a value of a type
that its field cannot have is left out alone, and named.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from analytics.otlp.flatten import WORDS
from analytics.otlp.json_documents import BrokenDocument
from analytics.otlp.lines import EXCERPT_BYTES
from analytics.otlp.otlp_json import OTHER_SIGNALS
from analytics.schema import KINDS, STATUSES

# Reasons in `quarantine` of what is a part of a line: its other spans are read.
MISTYPED_SPAN: Final = "mistyped_span"
BROKEN_PART: Final = "broken_part"
BESIDE_SPANS: Final = "beside_spans"
REASONS: Final = (MISTYPED_SPAN, BROKEN_PART, BESIDE_SPANS)

RESOURCES: Final = "resourceSpans"
# Envelopes of Tempo and of Jaeger's interface, around a document.
ENVELOPES: Final = ("result", "trace")
_OTHER_NAMES: Final = {
    "batches": RESOURCES,
    "instrumentationlibraryspans": "scopeSpans",
    "instrumentationlibrary": "scope",
}
_NAMES: Final = (
    *(RESOURCES, "scopeSpans", "resource", "scope", "spans", "name", "version"),
    *("traceId", "spanId", "parentSpanId", "traceState", "flags", "kind", "status", "code"),
    *("startTimeUnixNano", "endTimeUnixNano", "timeUnixNano", "attributes", "events", "links"),
    *("message", "key", "value", "values", "stringValue", "boolValue", "intValue", "doubleValue"),
    *("bytesValue", "arrayValue", "kvlistValue", *OTHER_SIGNALS, *ENVELOPES),
)
NAMES: Final = {name.lower(): name for name in _NAMES} | _OTHER_NAMES
# Lists that stand under two names are joined.
JOINED_LISTS: Final = (RESOURCES, "scopeSpans")

TRACE_ID_BYTES: Final = 16
SPAN_ID_BYTES: Final = 8
INTEGER: Final = re.compile(r"-?[0-9]{1,20}")
# Doubles up to this that are whole are written as whole numbers, as most producers do.
WHOLE_MAX: Final = 2.0**53
NOT_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")

Read: TypeAlias = Callable[[Any, str], Any]


class MistypedError(Exception):
    """A value cannot be what its field holds. The message names the field and what it needs."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A part of a line that is not in it: the reason, and words by which it is found."""

    reason: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class CanonicalLine:
    """A line of OTLP JSON without its newline, and what was left out of it."""

    text: bytes
    left_out: tuple[LeftOut, ...]


def canonical(documents: Iterable[Any]) -> CanonicalLine | None:
    """Return one line with the spans of all documents; None if none of them is OTLP at all."""
    resources: list[Any] = []
    left_out: list[LeftOut] = []
    found: list[str] = []
    for document in documents:
        try:
            told = _opened(document)
        except MistypedError as error:
            text = document.text if isinstance(document, BrokenDocument) else str(error)
            left_out.append(LeftOut(BROKEN_PART, text[:EXCERPT_BYTES]))
            continue
        found += [name for name in (RESOURCES, *OTHER_SIGNALS) if name in told]
        for resource in told.get(RESOURCES, ()):
            resources.append(_resource(resource, left_out))
    if not found:
        return None
    first = RESOURCES if RESOURCES in found else found[0]
    beside = sorted(OTHER_SIGNALS[name] for name in found if name != RESOURCES)
    if first == RESOURCES:
        left_out += [LeftOut(BESIDE_SPANS, f"{signal} beside spans") for signal in beside]
    line = json.dumps({first: resources}, separators=(",", ":"))
    return CanonicalLine(line.encode(), tuple(left_out))


def _opened(document: Any) -> dict[str, Any]:
    """Return what is in a document's envelopes, its lists checked. Raises MistypedError."""
    told = _folded(document, "the document")
    for name in ENVELOPES:
        told = _folded(told[name], name) if name in told else told
    names = [name for name in (RESOURCES, *OTHER_SIGNALS) if name in told]
    if not names:
        raise MistypedError("the document has no resourceSpans and no other signal of OTLP")
    return {name: _list(told[name], name) for name in names}


def _name(written: str) -> str:
    """Return the name of OTLP that is meant, or the written one."""
    return NAMES.get(written.replace("_", "").lower(), written)


def _folded(record: Any, where: str) -> dict[str, Any]:
    """Return an object with the names of OTLP, without nulls. Raises MistypedError."""
    if not isinstance(record, dict):
        raise MistypedError(f"{where} has to be an object")
    found: dict[str, Any] = {}
    for written, value in record.items():
        name = _name(written)
        if value is None:
            continue
        if name in JOINED_LISTS and name in found:
            value = _list(found[name], name) + _list(value, name)
        found[name] = value
    return found


def _list(value: Any, where: str) -> list[Any]:
    """Return a list. Raises MistypedError."""
    if not isinstance(value, list):
        raise MistypedError(f"{where} has to be an array")
    return value


def _resource(record: Any, left_out: list[LeftOut]) -> dict[str, Any]:
    """Return a resource and its usable spans; adds the others to `left_out`."""
    made: dict[str, Any] = {"scopeSpans": []}
    try:
        told = _folded(record, RESOURCES)
        scopes = _list(told.get("scopeSpans", []), "scopeSpans")
    except MistypedError as error:
        left_out.append(_left(MISTYPED_SPAN, error, {}))
        return made
    problem = _set(made, told, "resource", _about)
    made["scopeSpans"] = [_scope(scope, problem, left_out) for scope in scopes]
    return made


def _scope(record: Any, problem: MistypedError | None, left_out: list[LeftOut]) -> dict[str, Any]:
    """Return a scope and its usable spans: none if there is a problem above them."""
    made: dict[str, Any] = {"spans": []}
    try:
        told = _folded(record, "scopeSpans")
        spans = _list(told.get("spans", []), "spans")
    except MistypedError as error:
        left_out.append(_left(MISTYPED_SPAN, error, {}))
        return made
    problem = problem or _set(made, told, "scope", _fields_of(SCOPE))
    for span in spans:
        made["spans"] += _usable(span, problem, left_out)
    return made


def _set(
    made: dict[str, Any], told: Mapping[str, Any], name: str, read: Read
) -> MistypedError | None:
    """Read a field into `made` if it is there; return its problem."""
    try:
        if name in told:
            made[name] = read(told[name], name)
    except MistypedError as error:
        return error
    except RecursionError:
        return MistypedError(f"{name} has values that are nested too deeply")
    return None


def _usable(span: Any, problem: MistypedError | None, left_out: list[LeftOut]) -> list[Any]:
    """Return the span alone; nothing if it is left out."""
    try:
        if problem is not None:
            raise problem
        return [_fields_of(SPAN)(span, "span")]
    except (MistypedError, RecursionError) as error:
        left_out.append(_left(MISTYPED_SPAN, error, span))
        return []


def _left(reason: str, error: Exception, span: Any) -> LeftOut:
    """Return what a reader needs to find a span: why it is left out, and its words."""
    told = {_name(key): value for key, value in span.items()} if isinstance(span, dict) else {}
    words = [f"{name}={told[name]}" for name in WORDS if isinstance(told.get(name), str)]
    why = str(error) if isinstance(error, MistypedError) else "its values are nested too deeply"
    return LeftOut(reason, " ".join([f"{why};", *words])[:EXCERPT_BYTES])


def _fields_of(fields: Mapping[str, Read]) -> Read:
    """Return a reader of objects with these fields; it leaves other fields out."""

    def read(record: Any, where: str) -> dict[str, Any]:
        told = _folded(record, where)
        return {
            name: field(told[name], f"{where}.{name}")
            for name, field in fields.items()
            if name in told
        }

    return read


def _each(read: Read) -> Read:
    """Return a reader of arrays of what `read` reads."""
    return lambda values, where: [read(value, where) for value in _list(values, where)]


def _text(value: Any, where: str) -> str:
    """Return text; numbers and truth values are written as JSON writes them."""
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, list)):
        raise MistypedError(f"{where} has to be text")
    return json.dumps(value)


def _integer(value: Any, where: str) -> int:
    """Return a whole number, however it is written."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    text = "" if isinstance(value, bool) else str(value)
    if INTEGER.fullmatch(text) is None:
        raise MistypedError(f"{where} has to be a whole number")
    return int(text)


def _integer_text(value: Any, where: str) -> str:
    """Return a whole number as text."""
    return str(_integer(value, where))


def _time(value: Any, where: str) -> str:
    """Return a time in nanoseconds as text; what is no number is left to `flatten`."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _text(value, where)


def _truth(value: Any, where: str) -> bool:
    """Return a truth value, also if it is written as text."""
    known = {"true": True, "false": False}.get(value) if isinstance(value, str) else value
    if not isinstance(known, bool):
        raise MistypedError(f"{where} has to be true or false")
    return known


def _double(value: Any, where: str) -> float | int | str:
    """Return a number, or the text for what JSON has no number for."""
    try:
        number = float(value) if isinstance(value, (str, int, float)) else None
    except (ValueError, OverflowError):
        number = None
    if number is None or isinstance(value, bool):
        raise MistypedError(f"{where} has to be a number")
    if number != number or number in (float("inf"), float("-inf")):
        return NOT_NUMBERS[0] if number != number else NOT_NUMBERS[1 if number > 0 else 2]
    return int(number) if number.is_integer() and abs(number) <= WHOLE_MAX else number


def _identifier(size_bytes: int) -> Read:
    """Return a reader of ids of so many bytes, in hexadecimal or in base64."""

    def read(value: Any, where: str) -> str:
        text = _text(value, where)
        if len(text) != len(base64.b64encode(bytes(size_bytes))):
            return text
        try:
            raw = base64.b64decode(text.translate({ord("-"): "+", ord("_"): "/"}), validate=True)
        except (binascii.Error, ValueError):
            return text
        return raw.hex() if len(raw) == size_bytes else text

    return read


def _enumeration(names: Iterable[str], prefix: str) -> Read:
    """Return a reader of enums by number or name; an unknown name is 0."""
    numbers = {f"{start}{name}": at for at, name in enumerate(names) for start in ("", prefix)}

    def read(value: Any, where: str) -> int:
        text = _text(value, where)
        return int(text) if INTEGER.fullmatch(text) else numbers.get(text.upper(), 0)

    return read


def _any_value(value: Any, where: str) -> dict[str, Any]:
    """Return the value of an attribute. Raises MistypedError."""
    return dict(_members(_folded(value, where), where))


def _members(told: Mapping[str, Any], where: str) -> Iterator[tuple[str, Any]]:
    """Yield the members of a value that are known."""
    for name, read in VALUES.items():
        if name in told:
            yield name, read(told[name], f"{where}.{name}")


_attributes: Final[Read] = _each(_fields_of({"key": _text, "value": _any_value}))


_about: Final[Read] = _fields_of({"attributes": _attributes})


VALUES: Final[dict[str, Read]] = {
    "stringValue": _text,
    "boolValue": _truth,
    "intValue": _integer_text,
    "doubleValue": _double,
    "bytesValue": _text,
    "arrayValue": _fields_of({"values": _each(_any_value)}),
    "kvlistValue": _fields_of({"values": _attributes}),
}
SCOPE: Final[dict[str, Read]] = {"name": _text, "version": _text}
STATUS: Final[dict[str, Read]] = {
    "code": _enumeration(STATUSES, "STATUS_CODE_"),
    "message": _text,
}
EVENT: Final[dict[str, Read]] = {"timeUnixNano": _time, "name": _text, "attributes": _attributes}
LINK: Final[dict[str, Read]] = {
    "traceId": _identifier(TRACE_ID_BYTES),
    "spanId": _identifier(SPAN_ID_BYTES),
    "traceState": _text,
    "flags": _integer,
    "attributes": _attributes,
}
SPAN: Final[dict[str, Read]] = {
    "traceId": _identifier(TRACE_ID_BYTES),
    "spanId": _identifier(SPAN_ID_BYTES),
    "parentSpanId": _identifier(SPAN_ID_BYTES),
    "traceState": _text,
    "flags": _integer,
    "name": _text,
    "kind": _enumeration(KINDS, "SPAN_KIND_"),
    "startTimeUnixNano": _time,
    "endTimeUnixNano": _time,
    "attributes": _attributes,
    "events": _each(_fields_of(EVENT)),
    "links": _each(_fields_of(LINK)),
    "status": _fields_of(STATUS),
}
