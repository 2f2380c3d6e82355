"""Lines of OTLP JSON parsed by Arrow: a block of lines at once, spans still as OTLP has them.

Arrow is strict: a field of another type than its schema says refuses the whole block. Arrow ignores
fields that are not in the schema.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from analytics.otlp import flatten

Integers: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

TEXT: Final = pa.string()
_VALUE: Final = pa.struct(
    [
        ("stringValue", TEXT),
        ("boolValue", pa.bool_()),
        ("intValue", TEXT),
        ("doubleValue", pa.float64()),
        ("bytesValue", TEXT),
    ]
)
_ATTRIBUTES: Final = pa.list_(pa.struct([("key", TEXT), ("value", _VALUE)]))
_EVENT: Final = pa.struct([("timeUnixNano", TEXT), ("name", TEXT), ("attributes", _ATTRIBUTES)])
_LINK: Final = pa.struct(
    [
        ("traceId", TEXT),
        ("spanId", TEXT),
        ("traceState", TEXT),
        ("flags", pa.int64()),
        ("attributes", _ATTRIBUTES),
    ]
)
_SPAN: Final = pa.struct(
    [
        ("traceId", TEXT),
        ("spanId", TEXT),
        ("parentSpanId", TEXT),
        ("traceState", TEXT),
        ("flags", pa.int64()),
        ("name", TEXT),
        ("kind", pa.int64()),
        ("startTimeUnixNano", TEXT),
        ("endTimeUnixNano", TEXT),
        ("attributes", _ATTRIBUTES),
        ("events", pa.list_(_EVENT)),
        ("links", pa.list_(_LINK)),
        ("status", pa.struct([("code", pa.int64()), ("message", TEXT)])),
    ]
)
_SCOPE: Final = pa.struct(
    [
        ("scope", pa.struct([("name", TEXT), ("version", TEXT)])),
        ("spans", pa.list_(_SPAN)),
    ]
)
_RESOURCE: Final = pa.struct(
    [("resource", pa.struct([("attributes", _ATTRIBUTES)])), ("scopeSpans", pa.list_(_SCOPE))]
)
_LINE: Final = pa.schema([("resourceSpans", pa.list_(_RESOURCE))])


# Arrow would ignore these beside the names that it knows; lines with them are odd. A line that has
# other names in place of the known ones has no spans for Arrow, and is odd by that.
OTHER_NAMES: Final = (
    b'"instrumentationLibrarySpans"',
    *(b'"resourceMetrics"', b'"resourceLogs"', b'"resourceProfiles"'),
    flatten.JOINED.encode(),
)


class OddError(Exception):
    """A block has something that only `flatten` handles."""


def is_object(batch: pa.RecordBatch) -> Flags:
    """Return which lines have text that begins and ends as an object does."""
    text = batch.column("text")
    offsets, data = _buffers(text)
    starts, ends = offsets[:-1], offsets[1:].copy()
    for byte in b"\n\r":
        ends -= (ends > starts) & (data[ends - 1] == byte)
    filled = ends > starts
    sound = flags(pc.is_null(batch.column("problem"))) & filled
    sound[filled] &= (data[starts[filled]] == ord("{")) & (data[ends[filled] - 1] == ord("}"))
    return sound


@dataclass(frozen=True, slots=True)
class Parsed:
    """The spans of some lines, with the positions of the scope, resource and line of each."""

    spans: pa.StructArray
    scopes: pa.StructArray
    resources: pa.StructArray
    scope_of: Integers
    resource_of: Integers
    line_of: Integers


def parse(batch: pa.RecordBatch) -> Parsed:
    """Return the spans. Raises OddError or ArrowInvalid if a line is not what Arrow can parse."""
    text = batch.column("text")
    block = _bytes(text)
    if any(name in block for name in OTHER_NAMES):
        raise OddError("two objects on one line, or names that have to be translated")
    table = pyarrow.json.read_json(
        pa.BufferReader(block),
        pyarrow.json.ReadOptions(use_threads=False, block_size=len(block) + 1),
        pyarrow.json.ParseOptions(explicit_schema=_LINE, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(text):
        raise OddError("a line is not one object")
    level: list[tuple[pa.StructArray, Integers]] = []
    lists = table["resourceSpans"].combine_chunks()
    for name in ("scopeSpans", "spans", None):
        items = lists.flatten()
        if items.null_count:
            raise OddError("an array has null in it")
        level.append((items, pc.list_parent_indices(lists).to_numpy().astype(np.int64)))
        lists = None if name is None else items.field(name)
    (resources, line_of), (scopes, resource_of), (spans, scope_of) = level
    of_span = resource_of[scope_of]
    return Parsed(spans, scopes, resources, scope_of, of_span, line_of[of_span])


def _bytes(text: pa.StringArray) -> bytes:
    """Return the lines joined together. Raises OddError if they are not UTF-8."""
    offsets, data = _buffers(text)
    block = data[offsets[0] : offsets[-1]].tobytes()
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError as error:
            raise OddError("text that is no UTF-8") from error
    return block


def _buffers(text: pa.StringArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return the offsets at which texts begin, the end of the last one, and the bytes."""
    offsets = np.frombuffer(text.buffers()[1], np.int32)[text.offset :][: len(text) + 1]
    data = text.buffers()[2]
    return offsets, np.frombuffer(data, np.uint8) if data else np.zeros(0, np.uint8)


def flags(column: pa.BooleanArray) -> Flags:
    """Return a column without nulls as an array."""
    return np.asarray(column.to_numpy(zero_copy_only=False))
