"""The OTLP JSON encoding: one TracesData per line, as the specification of the file exporter says.

Ids are hexadecimal, enums are numbers, 64-bit integers are decimal strings, keys are
lowerCamelCase, and empty fields are left out. Encoding is most of the cost of a sampled command,
and the order of keys does not matter. So a span's text begins with a part that several spans share,
and ends with its own part. Spans that differ only in a few values are made together, as rows of a
table.
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

# The memory of longer lines is freed.
KEPT_BYTES_MAX: Final = MIB
# About 50 KB of text, small enough to be made in memory that was used just before.
ROWS_TOGETHER: Final = 32
# The places for the values of a row: characters that no JSON text contains.
COLUMNS: Final = ("\x01", "\x02", "\x03", "\x04")
_COLUMN: Final = re.compile(f"([{''.join(COLUMNS)}])")

_quoted: Final = json.JSONEncoder(ensure_ascii=True).encode


class Lines:
    """Makes lines in memory that is kept: new memory for a line costs more than its content.

    A line grows with the sampled commands of a prepare: a quarter of a megabyte for 128 commands
    that were sent together.
    """

    def __init__(self) -> None:
        """Begin without memory."""
        self._buffer = BytesIO()

    def line_of(self, resource: Mapping[str, Any], spans: Iterable[str]) -> memoryview:
        """Return encoded spans of one process as a line, with its end. There must be at least one.

        A text may hold several spans, with commas between them. The caller must release the line
        before the next call.
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
    """Return the shared part of spans of one trace, parent and kind, and `attributes` (encoded)."""
    parent = f'"parentSpanId":"{parent_id}",' if parent_id else ""
    more = f'"attributes":{attributes},' if attributes else ""
    # The sum is a plain number, because to format an enum costs more than all the rest.
    return f'{{"traceId":"{trace_id}",{parent}"flags":{FLAGS_SAMPLED},"kind":{kind + 0},{more}'


def own(span_id: str, name: str, start_ns: int, end_ns: int) -> str:
    """Return the own part of a span, which follows the shared part and ends the span."""
    return (
        f'"spanId":"{span_id}","name":{text_of(name)},'
        f'"startTimeUnixNano":"{start_ns}","endTimeUnixNano":"{end_ns}"}}'
    )


@cache  # one for each kind of span, and for each method
def pattern_of(*names: str) -> str:
    """Return a pattern for `%`; each span takes its shared part, its id, its start and its end.

    One use of it makes several spans, for a third of the cost of `own`.
    """
    texts = [_quoted(name).replace("%", "%%") for name in names]
    times = '"startTimeUnixNano":"%s","endTimeUnixNano":"%s"}'
    return ",".join(f'%s"spanId":"%s","name":{text},{times}' for text in texts)


def rows_of(text: str, *columns: Sequence[str]) -> Iterable[str]:
    """Yield `text` for each row, many rows at a time, with commas between them.

    Each of `COLUMNS` in it stands for the row's value in that column. This costs a fraction of
    formatting one span after another, because no Python code runs for a single row.
    """
    pattern = _COLUMN.split(text + ",")  # constant texts and columns in turn
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
    """Return links as a piece of the shared part, empty without links."""
    if not links:
        return ""
    texts = [f'{{"traceId":"{link.trace_id}","spanId":"{link.span_id}"}}' for link in links]
    return f'"links":[{",".join(texts)}],'


def status_of(code: int, message: str) -> str:
    """Return a status as a piece of the shared part, empty if it is not set."""
    if not code:
        return ""
    told = f',"message":{_quoted(message)}' if message else ""
    return f'"status":{{"code":{code + 0}{told}}},'


def attributes_of(attributes: Mapping[str, Any]) -> str:
    """Return attributes; their values are text, numbers or booleans."""
    pairs = [f'{{"key":{text_of(k)},"value":{_value(v)}}}' for k, v in attributes.items()]
    return f"[{','.join(pairs)}]"


def integers_of(*keys: str) -> str:
    """Return a pattern for `%`, which takes integers and makes attributes, without the brackets."""
    return ",".join(f'{{"key":"{key}","value":{{"intValue":"%s"}}}}' for key in keys)


@lru_cache(maxsize=TEXTS_CACHED)
def text_of(text: str) -> str:
    """Return a text, quoted. It is cached, because names, outcomes and methods repeat."""
    return _quoted(text)


def _value(value: Any) -> str:
    if type(value) is int:  # most of them
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, bool):  # before int, because a bool is an int, too
        return '{"boolValue":true}' if value else '{"boolValue":false}'
    if isinstance(value, int):
        return f'{{"intValue":"{value}"}}'
    if isinstance(value, float):
        text = repr(value) if math.isfinite(value) else _NOT_FINITE[repr(value)]
        return f'{{"doubleValue":{text}}}'
    return f'{{"stringValue":{text_of(str(value))}}}'


# JSON has no such numbers; protobuf's mapping writes them as strings.
_NOT_FINITE: Final = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}
