"""The OTLP JSON encoding: one TracesData per line, as the file exporter's specification has it.

Ids are hexadecimal, enums are numbers, 64-bit integers are decimal strings, keys are
lowerCamelCase, and nothing that is empty is written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from viewstamp.telemetry.sampling import TraceContext
from viewstamp.telemetry.spans import Attributes, AttributeValue, Kind, Span

SCOPE: Final = "viewstamp"
TEXTS_CACHED: Final = 1_024
# W3C trace flags of a span as OTLP carries them: it is sampled.
FLAGS_SAMPLED: Final = 1

_quoted: Final = json.JSONEncoder(ensure_ascii=True).encode


def encode_line(resource: Attributes, spans: Sequence[Span]) -> bytes:
    """Return spans of one process as a line, with its end. There must be at least one."""
    assert spans, "an empty line says nothing"
    known: dict[int, str] = {}  # spans of one command share their attributes
    encoded = ",".join([_encode(span, known) for span in spans])
    line = (
        f'{{"resourceSpans":[{{"resource":{{"attributes":{_attributes(resource)}}},'
        f'"scopeSpans":[{{"scope":{{"name":"{SCOPE}"}},"spans":[{encoded}]}}]}}]}}\n'
    )
    return line.encode("ascii")


def _encode(span: Span, known: dict[int, str]) -> str:
    # This is most of what a sampled command costs, so it takes a span apart but once.
    name, kind, context, parent_id, start_ns, end_ns, attributes, links, status, message = span
    trace_id, span_id = context
    parent = f'"parentSpanId":"{parent_id}",' if parent_id else ""
    more = ""
    if attributes:
        # The group keeps them alive, so that an id is one object's.
        text = known.get(id(attributes))
        if text is None:
            text = known[id(attributes)] = _attributes(attributes)
        more = f',"attributes":{text}'
    if links:
        more += f',"links":[{_links(links)}]'
    if status:
        told = f',"message":{_quoted(message)}' if message else ""
        more += f',"status":{{"code":{status:d}{told}}}'
    return (
        f'{{"traceId":"{trace_id}","spanId":"{span_id}",{parent}'
        f'"flags":{FLAGS_SAMPLED},"name":{_text(name)},"kind":{_KIND_DIGITS[kind]},'
        f'"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}"{more}}}'
    )


# Formatting an enum costs more than the rest of a span's line.
_KIND_DIGITS: Final = tuple(str(number) for number in range(max(Kind) + 1))


@lru_cache(maxsize=TEXTS_CACHED)
def _text(text: str) -> str:
    # Names, outcomes and methods come again and again.
    return _quoted(text)


def _links(links: Iterable[TraceContext]) -> str:
    return ",".join(f'{{"traceId":"{link.trace_id}","spanId":"{link.span_id}"}}' for link in links)


def _attributes(attributes: Attributes) -> str:
    pairs = [f'{{"key":"{key}","value":{_value(value)}}}' for key, value in attributes.items()]
    return f"[{','.join(pairs)}]"


def _value(value: AttributeValue | Any) -> str:
    if type(value) is int:  # most of them
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, bool):  # before int, which it is as well
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if isinstance(value, int):
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, float):
        text = repr(value) if math.isfinite(value) else _NOT_FINITE[repr(value)]
        return f'{{"doubleValue":{text}}}'
    return f'{{"stringValue":{_text(str(value))}}}'


# JSON has no such numbers; protobuf's mapping writes them as strings.
_NOT_FINITE: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
