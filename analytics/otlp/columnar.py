"""Usual lines become rows of `spans` by whole columns; the others are left to `flatten`.

Most lines are as the OTLP specification writes them. Arrow parses those, and this module does for a
block of lines at once what `flatten` does for one span, in a fraction of the time. A line with
anything else is *odd*, and goes to `flatten` unchanged: no JSON, no span, another signal, numbers
where text belongs or the other way round, arrays and maps as values, a key twice, ids or times that
cannot be used. The results must equal those of `flatten`; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analytics.otlp import flatten, lines
from analytics.otlp.arrow_json import (
    TEXT,
    Flags,
    Integers,
    OddError,
    Parsed,
    flags,
    is_object,
    parse,
)
from analytics.schema import KINDS, STATUSES, UNKNOWN_SERVICE

# A row that is not a span keeps these values in columns of `spans` of the same types.
PACKED: Final = {
    "source": "instance",
    "split_start": "start_us",
    "line": "end_us",
    "problem": "name",
    "excerpt": "status_message",
}
# The same for an odd line: `name` marks it as odd, and `rpc` has its problem.
PACKED_ODD: Final = {
    "source": "instance",
    "split_start": "start_us",
    "line": "end_us",
    "text": "status_message",
    "problem": "rpc",
}
ODD: Final = "odd"
# After the columns of `spans`: whether it is the first row of its line, as `flatten` has it.
IS_FIRST: Final = "is_first"

# A block that Arrow refuses is tried again in so many parts; the lines of refused parts are odd.
PARTS: Final = 16
# A block usually has few keys, so the keys of a span are bits of a number; else they are sorted.
KEY_BITS: Final = 31
TRACE_ID_DIGITS: Final = 32
SPAN_ID_DIGITS: Final = 16
# A longer name may have to be shortened: a folder writes a byte as up to three.
SERVICE_BYTES_MAX: Final = flatten.SERVICE_BYTES_MAX // 3
# Java and Arrow write numbers in this range as the same text, unless the numbers are whole.
PLAIN_MIN: Final = 1e-3
PLAIN_MAX: Final = 1e7
INTEGER: Final = r"^-?[0-9]{1,18}$"
# Java's regular expressions recognise more line endings than Arrow's.
LINE_ENDS: Final = "[\n\r\u0085\u2028\u2029]"


def rows(
    schema: pa.Schema, late_before_us: int | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Turn batches of `lines.COLUMNS` into rows of the schema: `spans`, and IS_FIRST.

    A row without a date is not a span of the table, but a late span (PACKED) or an odd line
    (PACKED_ODD).
    """
    for batch in batches:
        is_odd = ~is_object(batch)
        for part in _parts(batch.filter(pa.array(~is_odd)), 1):
            yield from _part(schema, late_before_us, part)
        if is_odd.any():
            yield _odd(schema, batch.filter(pa.array(is_odd)))


def _part(
    schema: pa.Schema, late_before_us: int | None, part: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some lines. If Arrow refuses one, try smaller parts."""
    try:
        yield from _spans(schema, late_before_us, part)
    except (OddError, pa.ArrowInvalid):
        for smaller in _parts(part, PARTS):
            try:
                yield from list(_spans(schema, late_before_us, smaller))
            except (OddError, pa.ArrowInvalid):
                yield _odd(schema, smaller)


def _parts(batch: pa.RecordBatch, count: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in about so many parts; nothing if it is empty."""
    step = max(1, -(-batch.num_rows // count))
    for first in range(0, batch.num_rows, step):
        yield batch.slice(first, step)


class _Attributes:
    """Attributes of some owners, one list each: a map for each, and the value of one key.

    `odd` marks each owner whose list has something that only `flatten` handles.
    """

    def __init__(self, lists: pa.ListArray) -> None:
        """Look at lists of pairs as Arrow parsed them; an absent one is empty."""
        items = lists.flatten()
        self._sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
        self._owners = np.repeat(np.arange(len(lists)), self._sizes)
        self._keys = items.field("key")
        self._texts, is_odd = _texts(items.field("value"))
        encoded = self._keys.dictionary_encode()
        self._codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
        self._names = encoded.dictionary
        self.odd = np.zeros(len(lists), bool)
        self.odd[self._owners[is_odd | (self._codes < 0)]] = True
        self.odd[self._twice()] = True

    def maps(self) -> pa.MapArray:
        """Return a map from key to text for each owner."""
        ends = np.cumsum(self._sizes)
        offsets = pa.array(np.append(0, ends).astype(np.int32))
        return pa.MapArray.from_arrays(offsets, self._keys, self._texts)

    def get(self, name: str) -> pa.StringArray:
        """Return the value of a key for each owner, null where it has none."""
        code = pc.index(self._names, pa.scalar(name, TEXT)).as_py()
        places = np.full(len(self._sizes), -1)
        found = np.flatnonzero(self._codes == code) if code >= 0 else np.zeros(0, np.int64)
        places[self._owners[found]] = found
        return self._texts.take(pa.array(places, mask=places < 0))

    def _twice(self) -> Integers:
        """Return owners that have a key twice."""
        if len(self._names) <= KEY_BITS:
            bits = np.left_shift(1, np.maximum(self._codes, 0))
            some = np.flatnonzero(self._sizes)
            firsts = (np.cumsum(self._sizes) - self._sizes)[some]
            if not len(some):
                return some
            # A bit that occurs twice counts once in the union and twice in the sum.
            is_odd = np.bitwise_or.reduceat(bits, firsts) != np.add.reduceat(bits, firsts)
            return np.asarray(some[is_odd])
        pairs = np.sort(self._owners * len(self._names) + self._codes)
        return np.asarray(pairs[1:][pairs[1:] == pairs[:-1]] // len(self._names))


def _texts(values: pa.StructArray) -> tuple[pa.StringArray, Flags]:
    """Return values as text, and a mask of the odd ones."""
    double = values.field("doubleValue")
    if double.null_count < len(double):
        numbers = double.fill_null(0.5).to_numpy()
        sizes = np.abs(numbers)
        plain = (sizes >= PLAIN_MIN) & (sizes < PLAIN_MAX) & (numbers != np.floor(numbers))
    else:
        plain = np.ones(len(double), bool)
    texts = pc.coalesce(
        values.field("stringValue"),
        values.field("boolValue").cast(TEXT),
        values.field("intValue"),
        double.cast(TEXT),
        values.field("bytesValue"),
    )
    return texts, ~plain | flags(pc.is_null(texts))


def _spans(
    schema: pa.Schema, late_before_us: int | None, batch: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of lines that Arrow can parse. Raises OddError or ArrowInvalid if not."""
    parsed = parse(batch)
    columns, is_odd_span = _columns(parsed)
    is_odd = np.bincount(parsed.line_of, minlength=batch.num_rows) == 0
    is_odd[parsed.line_of[is_odd_span]] = True
    columns[IS_FIRST] = pa.array(np.diff(parsed.line_of, prepend=-1) != 0)
    made = _made(schema, columns)
    wanted = ~is_odd[parsed.line_of]
    if late_before_us is not None:
        is_late = made.column("start_us").to_numpy() < late_before_us
        chosen = pa.array(np.flatnonzero(is_late & wanted))
        wanted &= ~is_late
        if len(chosen):
            lines_of = batch.take(pa.array(parsed.line_of[chosen.to_numpy()]))
            first = made.column(IS_FIRST).take(chosen)
            yield _late(schema, lines_of, parsed.spans.take(chosen), first)
    if wanted.any():
        yield made if wanted.all() else made.filter(pa.array(wanted))
    if is_odd.any():
        yield _odd(schema, batch.filter(pa.array(is_odd)))


def _columns(parsed: Parsed) -> tuple[dict[str, pa.Array], Flags]:
    """Return the columns of `spans`, and which spans are odd."""
    spans = parsed.spans
    attributes = _Attributes(spans.field("attributes"))
    about, odd_resource = _about(parsed.resources)
    start_ns, end_ns = (_whole(spans.field(f"{name}TimeUnixNano")) for name in ("start", "end"))
    trace_id, odd_trace = _id(spans.field("traceId"), TRACE_ID_DIGITS)
    span_id, odd_span = _id(spans.field("spanId"), SPAN_ID_DIGITS)
    name = spans.field("name").fill_null("")
    events, odd_event = _events(spans.field("events"))
    links, odd_link = _links(spans.field("links"))
    scopes = parsed.scopes.field("scope").take(pa.array(parsed.scope_of))
    numbers, odd_number = _numbers(
        attributes, about["replica_id"].take(pa.array(parsed.resource_of))
    )
    stage, odd_name = _stage(attributes.get("viewstamp.stage"), name)
    odd = attributes.odd | odd_resource[parsed.resource_of] | odd_trace | odd_span
    odd |= odd_event | odd_link | odd_number | odd_name | (end_ns <= 0)
    odd |= start_ns < flatten.TIME_MIN_US * flatten.NANOSECONDS_PER_US
    odd |= np.maximum(start_ns, end_ns) >= flatten.TIME_MAX_US * flatten.NANOSECONDS_PER_US
    parent = pc.ascii_lower(spans.field("parentSpanId"))
    start_us = start_ns // flatten.NANOSECONDS_PER_US
    columns = {
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_span_id": _where(pc.match_substring_regex(parent, "[1-9a-f]"), parent),
        "name": name,
        "kind": _enum(spans.field("kind"), KINDS),
        "start_us": pa.array(start_us),
        "end_us": pa.array(end_ns // flatten.NANOSECONDS_PER_US),
        "duration_us": pa.array(np.maximum(end_ns - start_ns, 0) / flatten.NANOSECONDS_PER_US),
        "status": _enum(spans.field("status").field("code"), STATUSES),
        "status_message": _filled(spans.field("status").field("message")),
        "rpc": _rpc(attributes.get("rpc.service"), attributes.get("rpc.method"), name),
        "stage": stage,
        "scope": scopes.field("name"),
        "scope_version": scopes.field("version"),
        "trace_state": _filled(spans.field("traceState")),
        "flags": spans.field("flags"),
        "attributes": attributes.maps(),
        "events": events,
        "links": links,
        "date": pa.array((start_us // flatten.MICROSECONDS_PER_DAY).astype("datetime64[D]")),
        **numbers,
    }
    for place in ("service", "instance", "cluster_id"):
        columns[place] = about[place].take(pa.array(parsed.resource_of))
    return columns, odd


def _about(resources: pa.StructArray) -> tuple[dict[str, pa.Array], Flags]:
    """Return the columns that come from the resource, and which resources are odd."""
    attributes = _Attributes(resources.field("resource").field("attributes"))
    service = _filled(attributes.get("service.name")).fill_null(UNKNOWN_SERVICE)
    names = {"instance": "service.instance.id"}
    names |= {name: f"viewstamp.{name}" for name in ("cluster_id", "replica_id")}
    found = {column: attributes.get(name) for column, name in names.items()}
    is_long = np.asarray(pc.binary_length(service)) > SERVICE_BYTES_MAX
    return {"service": service, **found}, attributes.odd | is_long


def _numbers(
    attributes: _Attributes, replica_of_resource: pa.StringArray
) -> tuple[dict[str, pa.Array], Flags]:
    """Return the columns that are whole numbers in attributes, and which spans have odd ones."""
    texts = {name: attributes.get(f"viewstamp.{name}") for name in ("op", "revision", "generation")}
    replica = attributes.get("viewstamp.replica_id")
    texts["replica_id"] = pc.coalesce(replica, replica_of_resource)
    odd = np.zeros(len(replica), bool)
    columns = {}
    for name, text in texts.items():
        if text.null_count == len(text):
            columns[name] = pa.nulls(len(text), pa.int64())
            continue
        is_whole = pc.match_substring_regex(text, INTEGER)
        columns[name] = _where(is_whole, text).cast(pa.int64())
        odd |= ~flags(is_whole.fill_null(True))
    return columns, odd


def _whole(text: pa.StringArray) -> Integers:
    """Return times; an absent one is 0. Raises ArrowInvalid for other values."""
    return np.asarray(text.cast(pa.int64()).fill_null(0).to_numpy())


def _id(text: pa.StringArray, digits: int) -> tuple[pa.StringArray, Flags]:
    """Return ids in lower case, and a mask of the missing ones: all zeros means missing."""
    lower = pc.ascii_lower(text)
    is_id = pc.match_substring_regex(lower, f"^[0-9a-f]{{{digits}}}$")
    is_id = pc.and_(is_id, pc.not_equal(lower, "0" * digits))
    return lower, ~flags(is_id.fill_null(False))


def _enum(numbers: pa.Int64Array, names: tuple[str, ...]) -> pa.StringArray:
    """Return the names of numbers; absent and unknown ones are the first."""
    known = numbers.fill_null(0).to_numpy()
    known = np.where((known >= 0) & (known < len(names)), known, 0)
    return pa.array(names, TEXT).take(pa.array(known))


def _rpc(service: pa.StringArray, method: pa.StringArray, name: pa.StringArray) -> pa.StringArray:
    """Return service/method where the span has them, else its name, by the rule of `flatten`."""
    whole = pc.fill_null(pc.match_substring(method, "/"), False)
    full = pc.if_else(whole, method, pc.binary_join_element_wise(service, method, "/"))
    return pc.coalesce(full, name)


def _stage(said: pa.StringArray, name: pa.StringArray) -> tuple[pa.StringArray, Flags]:
    """Return the stage from a span's attribute or its name, and which names are odd."""
    encoded = name.dictionary_encode()
    names = encoded.dictionary
    after = pc.struct_field(
        pc.extract_regex(names, flatten.STAGE_NAME.replace("(.+)", "(?P<stage>.+)")), "stage"
    )
    own = _where(pc.is_in(names, pa.array(flatten.STAGE_SPANS, TEXT)), names)
    of_name = pc.coalesce(_filled(after), own).take(encoded.indices)
    odd = flags(pc.match_substring_regex(names, LINE_ENDS))[encoded.indices.to_numpy()]
    return pc.coalesce(said, of_name), odd


def _events(lists: pa.ListArray) -> tuple[pa.ListArray, Flags]:
    """Return the events as the table has them, and which spans have odd ones."""
    items = lists.flatten()
    attributes = _Attributes(items.field("attributes"))
    time_ns = items.field("timeUnixNano").cast(pa.int64())
    columns = {
        "time_us": pc.divide(time_ns, flatten.NANOSECONDS_PER_US),
        "name": items.field("name"),
        "attributes": attributes.maps(),
    }
    return _listed(lists, items, columns, attributes.odd)


def _links(lists: pa.ListArray) -> tuple[pa.ListArray, Flags]:
    """Return the links as the table has them, and which spans have odd ones."""
    items = lists.flatten()
    attributes = _Attributes(items.field("attributes"))
    columns = {
        "trace_id": pc.ascii_lower(items.field("traceId")),
        "span_id": pc.ascii_lower(items.field("spanId")),
        "trace_state": _filled(items.field("traceState")),
        "flags": items.field("flags"),
        "attributes": attributes.maps(),
    }
    return _listed(lists, items, columns, attributes.odd)


def _listed(
    lists: pa.ListArray, items: pa.StructArray, columns: dict[str, pa.Array], odd_items: Flags
) -> tuple[pa.ListArray, Flags]:
    """Return lists of structs of the columns, as long as `lists`, and which have odd items."""
    sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    owners = np.repeat(np.arange(len(lists)), sizes)
    odd = np.zeros(len(lists), bool)
    odd[owners[odd_items | flags(pc.is_null(items))]] = True
    structs = pa.StructArray.from_arrays(list(columns.values()), names=list(columns))
    offsets = pa.array(np.append(0, np.cumsum(sizes)).astype(np.int32))
    return pa.ListArray.from_arrays(offsets, structs), odd


def _where(condition: pa.BooleanArray, values: pa.Array) -> pa.Array:
    """Return the values where the condition is true, else null."""
    return pc.if_else(condition, values, pa.scalar(None, values.type))


def _filled(text: pa.StringArray) -> pa.StringArray:
    """Return text, null where it is empty."""
    return _where(pc.not_equal(text, ""), text)


def _odd(schema: pa.Schema, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return lines as rows that are marked as odd."""
    columns: dict[str, Any] = {place: batch.column(name) for name, place in PACKED_ODD.items()}
    columns["name"] = pa.repeat(pa.scalar(ODD), batch.num_rows)
    return _sparse(schema, batch.num_rows, columns)


def is_odd(rows: pa.RecordBatch) -> bool:
    """Return whether a batch of `rows` has odd lines; it then has nothing else."""
    return rows.num_rows > 0 and bool(
        rows.column("date").null_count and rows.column("name")[0].as_py() == ODD
    )


def unpacked(odd: pa.RecordBatch) -> pa.RecordBatch:
    """Return the lines of a batch of odd lines (`lines.COLUMNS`)."""
    return odd.select([PACKED_ODD[name] for name in lines.NAMES]).rename_columns(list(lines.NAMES))


def _late(
    schema: pa.Schema, batch: pa.RecordBatch, spans: pa.StructArray, is_first: pa.BooleanArray
) -> pa.RecordBatch:
    """Return late spans as rows for quarantine; `batch` has the line of each."""
    columns: dict[str, Any] = {PACKED[name]: batch.column(name) for name in lines.PLACE}
    columns[PACKED["problem"]] = pa.repeat(pa.scalar(flatten.LATE), len(spans))
    columns[PACKED["excerpt"]] = _words(spans)
    columns[IS_FIRST] = is_first
    return _sparse(schema, len(spans), columns)


def _words(spans: pa.StructArray) -> pa.StringArray:
    """Return the text by which a reader finds spans in their lines, in the form of `flatten`."""
    words = [
        pc.binary_join_element_wise(f"{name}=", spans.field(name), "") for name in flatten.WORDS
    ]
    joined = pc.binary_join_element_wise(*words, " ", null_handling="skip")
    return pc.utf8_slice_codeunits(joined, 0, lines.EXCERPT_BYTES)


def _sparse(schema: pa.Schema, count: int, columns: dict[str, Any]) -> pa.RecordBatch:
    """Return rows that have some columns and are null in the others."""
    return _made(
        schema, {one.name: columns.get(one.name, pa.nulls(count, one.type)) for one in schema}
    )


def _made(schema: pa.Schema, columns: dict[str, Any]) -> pa.RecordBatch:
    """Return the columns in the order of the schema, with its names inside of types too."""
    return pa.RecordBatch.from_arrays(
        [columns[one.name].cast(one.type) for one in schema], schema=schema
    )
