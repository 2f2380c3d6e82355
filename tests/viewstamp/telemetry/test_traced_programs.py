"""Programs that end after a piece of work: their traces, and spans of rare work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from opentelemetry.trace import StatusCode

from tests.viewstamp.telemetry.collectors import Received
from tests.viewstamp.telemetry.spans_for_tests import SdkSpans
from viewstamp.telemetry import program, work

PARENT = f"00-{32 * 'a'}-{16 * 'b'}-01"
LONG_S = 60
PROGRAM = """
import sys
from viewstamp.telemetry.program import part, traced_program
with traced_program("a-program", "all"):
    with part("a part"):
        sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> SdkSpans:
    """Keep the spans of rare work in this process."""
    made = SdkSpans()
    monkeypatch.setattr(work, "tracer", made.tracer)
    return made


def ran(code: int, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program, which exits with this code, within these variables."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL")}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(code)],
        env=inherited | variables,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=False,
    )


def test_a_program_is_traced_where_its_variables_say(collector: tuple[str, Received]) -> None:
    """The spans of a program and its parts are exported at its end, below the given span."""
    endpoint, received = collector
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_RESOURCE_ATTRIBUTES": "a=b"}
    assert ran(0, TRACEPARENT=PARENT, **variables).returncode == 0
    part, whole = received.spans
    assert (whole.name, part.name) == ("all", "a part")
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (32 * "a", 16 * "b")
    assert part.parent_span_id == whole.span_id
    assert whole.status.code == part.status.code == 0
    assert {("service.name", "a-program"), ("a", "b")} <= received.resource.items()


def test_a_failure_is_told_without_words(collector: tuple[str, Received]) -> None:
    """A program that fails has the same exit code, and a span that is an error, without events."""
    endpoint, received = collector
    assert ran(3, OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=endpoint).returncode == 3
    for span in received.spans:
        assert span.status.code == 2 and not span.status.message and not span.events
        assert [(one.key, one.value.string_value) for one in span.attributes] == [
            ("error.type", "SystemExit")
        ]


def test_the_sampler_is_that_of_the_variables(collector: tuple[str, Received]) -> None:
    """A program that asks for no traces gets none, even with a collector."""
    endpoint, received = collector
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_TRACES_SAMPLER": "always_off"}
    assert ran(0, **variables).returncode == 0
    assert not received.requests


def test_a_collector_that_is_away_changes_nothing() -> None:
    """The program ends with its own exit code, soon, and its log tells the fate of the spans."""
    done = ran(3, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 3 and "Failed to export" in done.stderr


def test_a_program_that_is_asked_nothing_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without variables there is no span, no provider and no library."""
    for name in program.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    code = PROGRAM.replace("sys.exit(int(sys.argv[1]))", "pass")
    code += "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_client_alone_is_not_disturbed() -> None:
    """Without the SDK, variables for other programs do no harm."""
    hidden = "import sys; sys.modules['opentelemetry'] = None\n" + PROGRAM
    environment = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    done = subprocess.run(
        [sys.executable, "-c", hidden, "0"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_work_is_a_span(kept: SdkSpans) -> None:
    """Work within work is its child; an orderly end is not an error, a failure is."""
    with pytest.raises(KeyError), work.working("outer", {"viewstamp.generation": 3}, KeyError):
        with pytest.raises(ValueError), work.working("inner"):
            raise ValueError("secret")
        raise KeyError("secret")
    inner, outer = kept.spans
    assert inner.parent == outer.context and outer.parent is None
    assert outer.status.status_code is StatusCode.UNSET
    assert inner.status.status_code is StatusCode.ERROR
    assert dict(inner.attributes or {}) == {"error.type": "ValueError"}
    assert dict(outer.attributes or {}) == {"viewstamp.generation": 3}
    assert "secret" not in inner.to_json() + outer.to_json()


def test_work_that_others_do_meanwhile_is_not_below(kept: SdkSpans) -> None:
    """A trace that is begun has the given time, is a root, and is not current."""
    with work.working("another"):
        span = work.begun("a start", start_ns=1_000)
        with work.working("meanwhile"):
            span.end(2_000)
    start, meanwhile, another = kept.spans
    assert start.parent is None and (start.start_time, start.end_time) == (1_000, 2_000)
    assert meanwhile.parent == another.context
