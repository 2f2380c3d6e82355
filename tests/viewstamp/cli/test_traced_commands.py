"""Commands that are traced, because OpenTelemetry's variables ask for it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.telemetry.collectors import collecting

LONG_S = 60


def run(viewstamp: CommandLine, endpoint: str, *arguments: str) -> int:
    """Run a command in a process of its own, and return its exit code."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL")}
    named = {
        "XDG_CONFIG_HOME": str(viewstamp.home),
        "VIEWSTAMP_ADDRESS": viewstamp.address,
        "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
    }
    command = [sys.executable, "-m", "viewstamp.cli", *arguments]
    return subprocess.run(
        command, env=inherited | named, capture_output=True, timeout=LONG_S, check=False
    ).returncode


def test_a_command_and_its_calls_are_one_trace(viewstamp: CommandLine) -> None:
    """The name of a command's span omits its arguments, and the calls are below it."""
    with collecting() as (endpoint, received):
        assert run(viewstamp, endpoint, "stream", "create", "secret-name") == 0
    (root,) = [span for span in received.spans if not span.parent_span_id]
    assert (root.name, root.status.code) == ("viewstamp stream create", 0)
    calls = [span for span in received.spans if span.parent_span_id == root.span_id]
    assert "StreamsService/CreateStream" in {span.name for span in calls}
    assert {span.trace_id for span in received.spans} == {root.trace_id}
    assert received.resource["service.name"] == "viewstamp-cli"
    assert "secret-name" not in repr(received.spans)


def test_a_command_that_is_refused_is_an_error(viewstamp: CommandLine) -> None:
    """A refused command keeps its exit code, and its span is an error."""
    with collecting() as (endpoint, received):
        assert run(viewstamp, endpoint, "stream", "get", "nowhere") == 1
    (root,) = [span for span in received.spans if not span.parent_span_id]
    assert (root.name, root.status.code) == ("viewstamp stream get", 2)
