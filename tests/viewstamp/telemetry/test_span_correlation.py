"""Log lines within a span, the collector's spans, flags, and telemetry without files."""

from __future__ import annotations

import argparse
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.resources import Resource

from tests.viewstamp.telemetry.collectors import Received
from tests.viewstamp.telemetry.spans_for_tests import made_span
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.telemetry import configure_logging
from viewstamp.telemetry.collector import Collector
from viewstamp.telemetry.current import make_current
from viewstamp.telemetry.rpc import refused_attributes, refused_status, rpc_names
from viewstamp.telemetry.sampling import TraceContext
from viewstamp.telemetry.settings import (
    Telemetry,
    TelemetrySettings,
    add_arguments,
    arguments_of,
    settings_of,
)
from viewstamp.telemetry.spans import SpanOutcome, SpanRole

CONTEXT = TraceContext(32 * "a", 16 * "b")


def options(*arguments: str) -> argparse.Namespace:
    """Return parsed flags."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


def test_log_lines_carry_the_current_span() -> None:
    """A line within a sampled span has its ids; one outside has neither."""
    handlers, level = logging.root.handlers[:], logging.root.level
    stream = io.StringIO()
    configure_logging("echo", "info", stream)
    try:
        make_current(CONTEXT)
        logging.info("within")
        make_current(None)
        logging.info("without")
    finally:
        logging.root.handlers[:] = handlers
        logging.root.setLevel(level)
    within, without = map(json.loads, stream.getvalue().splitlines())
    assert (within["trace_id"], within["span_id"]) == CONTEXT
    assert "trace_id" not in without and "span_id" not in without


def test_collector_gets_every_part(collector: tuple[str, Received]) -> None:
    """An exported span arrives with ids, parent, kind, times, attributes, links and status."""
    endpoint, received = collector
    telemetry = Telemetry("echo", TelemetrySettings(otlp_endpoint=endpoint))
    telemetry.belongs_to(16 * b"\x01", 2)
    assert telemetry.recorder is not None
    telemetry.recorder.record(
        made_span(
            "stage echo",
            CONTEXT,
            kind=SpanRole.CLIENT,
            parent_id=16 * "c",
            attributes={"viewstamp.op": 2**40, "viewstamp.outcome": "ok"},
            links=[TraceContext(32 * "d", 16 * "e")],
            status=SpanOutcome.ERROR,
            message="why",
        )
    )
    telemetry.close()
    (request,) = received.requests
    (resource_spans,) = request.resource_spans
    resource = {a.key: a.value for a in resource_spans.resource.attributes}
    assert resource["service.name"].string_value == "viewstamp-echo"
    assert resource["viewstamp.replica_id"].int_value == 2
    (span,) = resource_spans.scope_spans[0].spans
    assert (span.trace_id.hex(), span.span_id.hex()) == CONTEXT
    assert (span.parent_span_id.hex(), span.name, span.kind) == (16 * "c", "stage echo", 3)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (1_000, 2_000)
    assert {a.key: a.value.int_value for a in span.attributes}["viewstamp.op"] == 2**40
    assert (span.links[0].trace_id.hex(), span.links[0].span_id.hex()) == (32 * "d", 16 * "e")
    assert (span.status.code, span.status.message) == (2, "why")


@pytest.mark.parametrize("endpoint", ["localhost:4317", "ftp://localhost", ""])
def test_endpoint_is_checked(endpoint: str) -> None:
    """An endpoint without http or https is refused with its flag."""
    with pytest.raises(ValueError, match="--otlp-endpoint"):
        Collector(endpoint, Resource.create)


def test_flags_become_settings_and_back(tmp_path: Path) -> None:
    """Settings that were made into flags are read as the same settings."""
    settings = TelemetrySettings(tmp_path, 0.25, 0.5, "http://localhost:4317", "127.0.0.1:0")
    assert settings_of(options(*arguments_of(settings))) == settings
    assert settings_of(options()) == TelemetrySettings()


@pytest.mark.parametrize("flag", ["--trace-ratio", "--prepare-trace-ratio"])
def test_ratios_are_checked(flag: str) -> None:
    """A ratio beyond 0 to 1 is refused with its flag."""
    with pytest.raises(ValueError, match=rf"{flag} is 1\.5: give a number from 0 to 1"):
        settings_of(options(flag, "1.5"))


def test_without_a_place_nothing_is_recorded() -> None:
    """A process without a destination has no recorder, so no span is made."""
    telemetry = Telemetry("echo", TelemetrySettings(trace_ratio=1.0))
    assert telemetry.recorder is None and telemetry.serve_metrics() is None
    telemetry.close()


OUTCOMES: Sequence[tuple[Reason.ValueType, SpanOutcome]] = (
    (Reason.REASON_STREAM_EXISTS, SpanOutcome.UNSET),
    (Reason.REASON_PERMISSION_DENIED, SpanOutcome.UNSET),
    (Reason.REASON_INTERNAL, SpanOutcome.ERROR),
    (Reason.REASON_OVERLOADED, SpanOutcome.ERROR),
    (Reason.REASON_READ_DEADLINE, SpanOutcome.ERROR),
    (Reason.REASON_REPLICA_DIVERGED, SpanOutcome.UNSET),
)


@pytest.mark.parametrize(("reason", "status"), OUTCOMES)
def test_only_failures_are_errors(reason: Reason.ValueType, status: SpanOutcome) -> None:
    """A refusal is an error of the cluster only if the caller could not have avoided it."""
    assert refused_status(reason) is status
    assert refused_attributes(reason)["viewstamp.reason"] == Reason.Name(reason)[len("REASON_") :]


def test_methods_are_named_as_grpc_names_them() -> None:
    """The span's name is short, its attributes hold the full name of the service."""
    names = rpc_names("viewstamp.api.streams.v1.StreamsService/CreateTopic")
    assert names.span_name == "StreamsService/CreateTopic"
    assert names.attributes == {
        "rpc.system": "grpc",
        "rpc.service": "viewstamp.api.streams.v1.StreamsService",
        "rpc.method": "CreateTopic",
    }
