"""Spans by OpenTelemetry's tracer, on their way into the files and to a collector."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import (
    Link,
    SpanKind,
    StatusCode,
    set_span_in_context,
    use_span,
)

from tests.viewstamp.telemetry.spans_for_tests import (
    TraceSpan,
    made_span,
    plain,
    read_span,
    read_spans,
)
from tests.viewstamp.telemetry.test_otlp_encoding import SPANS
from viewstamp.telemetry import configure_logging
from viewstamp.telemetry.collector import sdk_spans
from viewstamp.telemetry.current import make_current, sampled_span
from viewstamp.telemetry.files import CURRENT_NAME, DirectoryTakenError
from viewstamp.telemetry.provider import FinishedSpan
from viewstamp.telemetry.sampling import TraceContext
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings
from viewstamp.telemetry.spans import Notes, SpanOutcome
from viewstamp.telemetry.spool import Spool


def read_back(text: str) -> TraceSpan:
    """Return a span as it is read."""
    return read_span(json.loads(text))


@given(SPANS)
def test_the_collectors_form_has_all_of_a_span(span: TraceSpan) -> None:
    """The collector's form of a span gives the same text again."""
    if span.status is not SpanOutcome.ERROR:
        span = span._replace(message="")  # OpenTelemetry has no message for other outcomes
    (text,) = span.encoded()
    (read,) = sdk_spans(f"[{text}]", Resource({}))
    assert read_back(FinishedSpan(read).encoded()[0]) == read_back(text)
    if read.parent is not None:
        assert read.parent.is_remote == (read.kind is SpanKind.SERVER)


def test_spans_of_the_tracer_are_written(tmp_path: Path) -> None:
    """Kind, parent, times, attributes, links and status of the SDK's spans stand in the file."""
    telemetry = Telemetry("echo", TelemetrySettings(tmp_path))
    root = telemetry.tracer.start_span("root", Context(), start_time=1_000)
    child = telemetry.tracer.start_span(
        "child",
        set_span_in_context(root),
        SpanKind.CLIENT,
        {"viewstamp.op": 2**40, "viewstamp.outcome": "ok"},
        [Link(root.get_span_context())],
        2_000,
    )
    child.set_status(StatusCode.ERROR)
    child.end(3_000)
    root.end(4_000)
    telemetry.close()
    written, above = read_spans(tmp_path)
    assert (written.name, written.kind, written.status) == ("child", 3, 2)
    assert (above.name, above.kind, above.parent_id, above.status) == ("root", 1, "", 0)
    assert written.parent_id == above.span_id and written.trace_id == above.trace_id
    assert (written.start_ns, written.end_ns, above.end_ns) == (2_000, 3_000, 4_000)
    assert written.attributes == {"viewstamp.op": 2**40, "viewstamp.outcome": "ok"}
    assert written.links == [(above.trace_id, above.span_id)]


def test_a_parent_that_is_not_sampled_is_followed(tmp_path: Path) -> None:
    """Work below an unsampled span leaves nothing, though every trace from here is kept."""
    telemetry = Telemetry("echo", TelemetrySettings(tmp_path))
    unsampled = telemetry.tracer.start_span("x", Context()).get_span_context()
    from opentelemetry.trace import NonRecordingSpan, SpanContext

    parent = SpanContext(unsampled.trace_id, unsampled.span_id, is_remote=True)
    below = set_span_in_context(NonRecordingSpan(parent), Context())
    telemetry.tracer.start_span("below", below).end()
    telemetry.close()
    assert read_spans(tmp_path) == []


def test_the_resource_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spans get the resource once it is known, beside the environment's description.

    Each line is JSON, whatever the environment holds.
    """
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", 'deployment.environment=a "test",q"uote=1')
    telemetry = Telemetry("echo", TelemetrySettings(tmp_path))
    telemetry.belongs_to(16 * b"\x01", 2)
    telemetry.tracer.start_span("a span").end()
    telemetry.close()
    line = json.loads((tmp_path / "viewstamp-echo" / CURRENT_NAME).read_text())
    told = plain(line["resourceSpans"][0]["resource"]["attributes"])
    assert told["service.name"] == "viewstamp-echo" and len(told["service.instance.id"]) == 36
    assert (told["viewstamp.cluster_id"], told["viewstamp.replica_id"]) == (16 * "01", 2)
    assert told["deployment.environment"] == 'a "test"' and told['q"uote'] == "1"


def test_without_a_place_the_tracer_makes_nothing() -> None:
    """A process without a destination has a tracer that makes no spans."""
    telemetry = Telemetry("echo", TelemetrySettings())
    assert not telemetry.tracer.start_span("a span").is_recording()


def test_log_lines_within_a_span_of_the_tracer(tmp_path: Path) -> None:
    """A log line within a span of the SDK carries it, like one within a sampled call."""
    telemetry = Telemetry("echo", TelemetrySettings(tmp_path))
    handlers, level, stream = logging.root.handlers[:], logging.root.level, io.StringIO()
    configure_logging("echo", "info", stream)
    try:
        with telemetry.tracer.start_as_current_span("a span"):
            logging.info("within")
        logging.info("without")
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
        telemetry.close()
    within, without = map(json.loads, stream.getvalue().splitlines())
    (span,) = read_spans(tmp_path)
    assert (within["trace_id"], within["span_id"]) == (span.trace_id, span.span_id)
    assert "trace_id" not in without


def test_current_spans_are_those_of_opentelemetry(tmp_path: Path) -> None:
    """A sampled current span is current for OpenTelemetry, and the other way round."""
    context = TraceContext(32 * "a", 16 * "b")
    telemetry = Telemetry("echo", TelemetrySettings(tmp_path))
    make_current(context)
    try:
        below = telemetry.tracer.start_span("below")
        assert f"{below.get_span_context().trace_id:032x}" == context.trace_id
        assert sampled_span() == context
    finally:
        make_current(None)
    assert sampled_span() is None
    with use_span(below):
        assert sampled_span() == TraceContext(
            context.trace_id, f"{below.get_span_context().span_id:016x}"
        )
    telemetry.close()


class Counting:
    """A sink that only counts."""

    def __init__(self) -> None:
        """Begin without spans."""
        self.count = 0

    def write(self, notes: Sequence[Notes]) -> None:
        """Count."""
        self.count += len(notes)

    def close(self) -> None:
        """Nothing is held."""


def test_spans_come_from_many_threads() -> None:
    """Spans from many simultaneous threads are each written or counted as dropped."""
    sink = Counting()
    spool, each, threads = Spool("counting", sink, capacity=500), 5_000, 4
    span = made_span()

    def put() -> None:
        for _ in range(each):
            spool.put(span)

    putting = [threading.Thread(target=put) for _ in range(threads)]
    for thread in putting:
        thread.start()
    for thread in putting:
        thread.join()
    spool.close()
    assert sink.count == spool.written
    assert spool.written + spool.dropped == each * threads


def test_what_comes_after_the_end_is_counted() -> None:
    """A span that ends when the queue is closed is dropped and counted, not left in the queue."""
    sink = Counting()
    spool = Spool("counting", sink)
    spool.put(made_span())
    spool.close()
    spool.put(made_span())
    assert (sink.count, spool.written, spool.dropped) == (1, 1, 1)


def test_what_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    """A directory that is taken ends the start before any thread runs, the collector's included."""
    settings = TelemetrySettings(directory=tmp_path, otlp_endpoint="http://127.0.0.1:1")
    first = Telemetry("taken", replace(settings, otlp_endpoint=None))
    before = threading.active_count()
    with pytest.raises(DirectoryTakenError):
        Telemetry("taken", settings)
    assert threading.active_count() == before
    first.close()
