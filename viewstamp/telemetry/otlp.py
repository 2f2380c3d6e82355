"""The OTLP JSON encoding: one TracesData per line, as the file exporter's specification has it.

Ids are hexadecimal, enums are numbers, 64-bit integers are decimal strings, keys are
lowerCamelCase, and nothing that is empty is written. A span's text is what several spans share,
then what is its own: the order of keys does not matter, and encoding is most of what a sampled
command costs. Spans that are alike but for a few values are made together, as rows of a table.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from io import BytesIO
from typing import Any, Final

from viewstamp.limits import MIB
from viewstamp.telemetry.sampling import TraceContext

SCOPE: Final = "viewstamp"
TEXTS_CACHED: Final = 1_024
# W3C trace flags of a span as OTLP carries them: it is sampled.
FLAGS_SAMPLED: Final = 1

# The memory of longer lines is given back.
KEPT_BYTES_MAX: Final = MIB
# About 50 KB of text, small enough to be made in memory that was used just before.
ROWS_TOGETHER: Final = 32
# Placeholders for the values of a row: characters that occur in no JSON text.
COLUMNS: Final = ("\x01", "\x02", "\x03", "\x04")
_COLUMN: Final = re.compile(f"([{''.join(COLUMNS)}])")

_quoted: Final = json.JSONEncoder(ensure_ascii=True).encode


class Lines:
    """Makes lines in memory that is kept: to get new memory for one takes longer than to fill it.

    A line is as large as a prepare has sampled commands, a quarter of a megabyte where 128 have
    been sent together.
    """

    def __init__(self) -> None:
        """Begin without memory."""
        self._buffer = BytesIO()

    def line_of(self, resource: Mapping[str, Any], spans: Iterable[str]) -> memoryview:
        """Return encoded spans of one process as a line, with its end. There must be at least one.

        A text may hold several spans, with commas between them. The line is there until it is
        released, which the caller has to do before the next one.
        """
        if self._buffer.tell() > KEPT_BYTES_MAX:
            self._buffer = BytesIO()
        buffer = self._buffer
        buffer.seek(0)
        before = (
            f'{{"resourceSpans":[{{"resource":{{"attributes":{attributes_of(resource)}}},'
            f'"scopeSpans":[{{"scope":{{"name":"{SCOPE}"}},"spans":['
        )
        for text in spans:
            buffer.write(before.encode("ascii"))
            buffer.write(text.encode("ascii"))
            before = ","
        buffer.write(b"]}]}]}\n")
        return buffer.getbuffer()[: buffer.tell()]


def span_of(
    name: str,
    kind: int,
    context: TraceContext,
    parent_id: str,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Any],
    links: Sequence[TraceContext] = (),
    status: int = 0,
    message: str = "",
) -> str:
    """Return a span. Times are nanoseconds since 1970; `parent_id` is empty for a root."""
    text = attributes_of(attributes) if attributes else ""
    head = shared(context.trace_id, parent_id, kind, text)
    more = links_of(links) + status_of(status, message)
    return head + more + own(context.span_id, name, start_ns, end_ns)


def shared(trace_id: str, parent_id: str, kind: int, attributes: str) -> str:
    """Return the text that spans of one trace, parent and kind share, given encoded attributes."""
    parent = f'"parentSpanId":"{parent_id}",' if parent_id else ""
    more = f'"attributes":{attributes},' if attributes else ""
    # The sum is a plain number: formatting an enum costs more than all the rest.
    return f'{{"traceId":"{trace_id}",{parent}"flags":{FLAGS_SAMPLED},"kind":{kind + 0},{more}'


def own(span_id: str, name: str, start_ns: int, end_ns: int) -> str:
    """Return the rest of a span behind its shared text, with its end."""
    return (
        f'"spanId":"{span_id}","name":{text_of(name)},'
        f'"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}"}}'
    )


@cache  # as many as there are kinds of spans, and methods
def pattern_of(*names: str) -> str:
    """Return what `%` makes spans of: for each what is shared, its id, its start and its end.

    So several spans are made by one call, which is a third of what it costs to make them by `own`.
    """
    texts = [_quoted(name).replace("%", "%%") for name in names]
    times = '"startTimeUnixNano":"%s","endTimeUnixNano":"%s"}'
    return ",".join(f'%s"spanId":"%s","name":{text},{times}' for text in texts)


def rows_of(text: str, *columns: Sequence[str]) -> Iterable[str]:
    """Yield `text` for each row, many rows at a time, with commas between them.

    Each of `COLUMNS` in it stands for the row's value in that column. So many spans take a fraction
    of what it takes to format one after another: no Python code runs for a single row.
    """
    pattern = _COLUMN.split(text + ",")  # what is between values, and in turn with it the columns
    width = len(pattern)
    places = [(place, COLUMNS.index(pattern[place])) for place in range(1, width, 2)]
    for start in range(0, len(columns[0]), ROWS_TOGETHER):
        rows = [column[start : start + ROWS_TOGETHER] for column in columns]
        cells = pattern * len(rows[0])
        for place, column in places:
            cells[place::width] = rows[column]
        cells[-1] = cells[-1][:-1]
        yield "".join(cells)


def links_of(links: Sequence[TraceContext]) -> str:
    """Return links as a part of what is shared, empty where there is none."""
    if not links:
        return ""
    texts = [f'{{"traceId":"{link.trace_id}","spanId":"{link.span_id}"}}' for link in links]
    return f'"links":[{",".join(texts)}],'


def status_of(code: int, message: str) -> str:
    """Return a status as a part of what is shared, empty where it is not set."""
    if not code:
        return ""
    told = f',"message":{_quoted(message)}' if message else ""
    return f'"status":{{"code":{code + 0}{told}}},'


def attributes_of(attributes: Mapping[str, Any]) -> str:
    """Return attributes; their values are text, numbers or booleans."""
    pairs = [f'{{"key":{text_of(k)},"value":{_value(v)}}}' for k, v in attributes.items()]
    return f"[{','.join(pairs)}]"


def integers_of(*keys: str) -> str:
    """Return the template from which `%` makes attributes of integers, without brackets."""
    return ",".join(f'{{"key":"{key}","value":{{"intValue":"%s"}}}}' for key in keys)


@lru_cache(maxsize=TEXTS_CACHED)
def text_of(text: str) -> str:
    """Return a text, quoted. Names, outcomes and methods come again and again."""
    return _quoted(text)


def _value(value: Any) -> str:
    if type(value) is int:  # most of them
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, bool):  # before int, which it is as well
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if isinstance(value, int):
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, float):
        text = repr(value) if math.isfinite(value) else _NOT_FINITE[repr(value)]
        return f'{{"doubleValue":{text}}}'
    return f'{{"stringValue":{text_of(str(value))}}}'


# JSON has no such numbers; protobuf's mapping writes them as strings.
_NOT_FINITE: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
