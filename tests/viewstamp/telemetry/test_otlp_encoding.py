"""The OTLP JSON encoding, against the rules and against OpenTelemetry's own messages."""

from __future__ import annotations

import json
import math
import re
import tracemalloc

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from tests.viewstamp.telemetry.spans_for_tests import TraceSpan, encode_line, made_span, plain
from viewstamp.telemetry.otlp import COLUMNS, KEPT_BYTES_MAX, ROWS_TOGETHER, Lines, rows_of
from viewstamp.telemetry.sampling import TraceContext
from viewstamp.telemetry.spans import Attributes, SpanOutcome, SpanRole, texts_of

RESOURCE: Attributes = {"service.name": "viewstamp-echo", "viewstamp.replica_id": 2}
U63 = st.integers(0, 2**63 - 1)
VALUES = st.one_of(st.text(), U63, st.booleans(), st.floats(allow_nan=False))
SPANS = st.builds(
    made_span,
    name=st.text(),
    kind=st.sampled_from(SpanRole),
    parent_id=st.sampled_from(["", 16 * "a"]),
    start_ns=U63,
    end_ns=U63,
    attributes=st.dictionaries(st.from_regex(r"\A[a-z][a-z._]*\Z"), VALUES, max_size=4),
    links=st.lists(st.just(TraceContext(32 * "1", 16 * "2")), max_size=3),
    status=st.sampled_from(SpanOutcome),
    message=st.text(max_size=5),
)


def finite(attributes: Attributes) -> Attributes:
    """Return attributes without the values of infinite ones, which JSON tells as text."""
    infinite = {"Infinity", "-Infinity", math.inf, -math.inf}
    return {key: "infinite" if value in infinite else value for key, value in attributes.items()}


@given(st.lists(SPANS, min_size=1, max_size=3))
def test_line_holds_what_was_recorded(spans: list[TraceSpan]) -> None:
    """A line is one JSON object without a line break, and every part of every span is in it."""
    encoded = encode_line(RESOURCE, spans)
    assert encoded.count(b"\n") == 1 and encoded.endswith(b"\n")
    (resource_spans,) = json.loads(encoded)["resourceSpans"]
    assert plain(resource_spans["resource"]["attributes"]) == RESOURCE
    (scope_spans,) = resource_spans["scopeSpans"]
    assert len(scope_spans["spans"]) == len(spans)
    for span, told in zip(spans, scope_spans["spans"], strict=True):
        assert (told["traceId"], told["spanId"]) == span.context
        assert told.get("parentSpanId", "") == span.parent_id
        assert (told["name"], told["kind"]) == (span.name, span.kind)
        times = (told["startTimeUnixNano"], told["endTimeUnixNano"])
        assert times == (str(span.start_ns), str(span.end_ns))
        assert finite(plain(told.get("attributes", []))) == finite(span.attributes)
        links = [(link["traceId"], link["spanId"]) for link in told.get("links", [])]
        assert links == [tuple(link) for link in span.links]
        assert told.get("status", {}).get("code", 0) == span.status


@given(SPANS)
def test_nothing_empty_is_written(span: TraceSpan) -> None:
    """Fields that say nothing are left out, and no key is in snake case."""
    text = encode_line(RESOURCE, [span]).decode()
    (told,) = json.loads(text)["resourceSpans"][0]["scopeSpans"][0]["spans"]
    # A name is told even if it is empty: it is not optional.
    assert [key for key, value in told.items() if value in ([], {}, None, "")] in ([], ["name"])
    assert [key for key in told if not re.fullmatch("[a-zA-Z]+", key)] == []


def test_opentelemetry_reads_it() -> None:
    """OpenTelemetry's own messages take a line, once its ids are the base64 that protobuf wants."""
    from base64 import b64encode

    from google.protobuf import json_format

    context = TraceContext(32 * "a", 16 * "b")
    span = made_span("n", context, attributes={"a": 2**62, "b": True, "c": "d", "e": 0.5})
    line = json.loads(encode_line(RESOURCE, [span]))
    (told,) = line["resourceSpans"][0]["scopeSpans"][0]["spans"]
    for key in ("traceId", "spanId"):
        told[key] = b64encode(bytes.fromhex(told[key])).decode()
    message = json_format.ParseDict(line, TracesData())
    read = message.resource_spans[0].scope_spans[0].spans[0]
    assert (read.trace_id, read.span_id) == (16 * b"\xaa", 8 * b"\xbb")
    assert (read.kind, read.flags, read.start_time_unix_nano) == (1, 1, 1_000)
    values = [attribute.value for attribute in read.attributes]
    assert [value.WhichOneof("value") for value in values] == [
        "int_value",
        "bool_value",
        "string_value",
        "double_value",
    ]
    assert values[0].int_value == 2**62


@given(st.lists(st.lists(SPANS, min_size=1, max_size=3), min_size=1, max_size=4))
def test_memory_of_lines_is_used_again(lines: list[list[TraceSpan]]) -> None:
    """A line has nothing of the one before it in the same memory, however long that was."""
    kept = Lines()
    for spans in lines:
        with kept.line_of(RESOURCE, texts_of(spans)) as line:
            assert bytes(line) == encode_line(RESOURCE, spans)


def test_memory_of_long_lines_is_given_back() -> None:
    """The memory of an unusually long line is freed after it."""
    tracemalloc.start()
    kept = Lines()
    kept.line_of({}, ["x" * (KEPT_BYTES_MAX + 1)]).release()
    kept.line_of({}, ["y"]).release()
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < KEPT_BYTES_MAX


ROWS = st.lists(st.tuples(st.text("ab", max_size=2), st.text("cd", max_size=2)), min_size=1)


@given(ROWS, st.integers(1, 3 * ROWS_TOGETHER))
def test_rows_are_the_text_with_their_values(rows: list[tuple[str, str]], times: int) -> None:
    """Rows made together are those that are made one by one, with commas between them."""
    first, _, third, _ = COLUMNS
    text = f"<{first}|{third}|{first}>"
    rows *= times
    made = ",".join(rows_of(text, [row[0] for row in rows], (), [row[1] for row in rows]))
    assert made == ",".join(f"<{one}|{two}|{one}>" for one, two in rows)
