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
from viewstamp.telemetry.spans import Attributes, AttributeValue, Span

SCOPE: Final = "viewstamp"
NAMES_CACHED: Final = 1_024
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
    context, parent_id = span.context, span.parent_id
    parent = f'"parentSpanId":"{parent_id}",' if parent_id else ""
    more = ""
    if span.attributes:
        # The group keeps them alive, so that an id is one object's.
        attributes = known.get(id(span.attributes))
        if attributes is None:
            attributes = known[id(span.attributes)] = _attributes(span.attributes)
        more = f',"attributes":{attributes}'
    if span.links:
        more += f',"links":[{_links(span.links)}]'
    if span.status:
        message = f',"message":{_quoted(span.message)}' if span.message else ""
        more += f',"status":{{"code":{span.status:d}{message}}}'
    return (
        f'{{"traceId":"{context.trace_id}","spanId":"{context.span_id}",{parent}'
        f'"flags":{FLAGS_SAMPLED},"name":{_name(span.name)},"kind":{span.kind:d},'
        f'"startTimeUnixNano":"{span.start_ns}","endTimeUnixNano":"{span.end_ns}"{more}}}'
    )


@lru_cache(maxsize=NAMES_CACHED)
def _name(name: str) -> str:
    return _quoted(name)


def _links(links: Iterable[TraceContext]) -> str:
    return ",".join(f'{{"traceId":"{link.trace_id}","spanId":"{link.span_id}"}}' for link in links)


def _attributes(attributes: Attributes) -> str:
    pairs = (f'{{"key":"{key}","value":{_value(value)}}}' for key, value in attributes.items())
    return f"[{','.join(pairs)}]"


def _value(value: AttributeValue | Any) -> str:
    if isinstance(value, bool):  # before int, which it is as well
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if isinstance(value, int):
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, float):
        text = repr(value) if math.isfinite(value) else _NOT_FINITE[repr(value)]
        return f'{{"doubleValue":{text}}}'
    return f'{{"stringValue":{_quoted(str(value))}}}'


# JSON has no such numbers; protobuf's mapping writes them as strings.
_NOT_FINITE: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
