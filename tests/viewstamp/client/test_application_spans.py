"""Calls of an application that uses OpenTelemetry itself: they belong to its traces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

import viewstamp
from tests.viewstamp.client.fake_gateway import PASSWORD, FakeGateway
from tests.viewstamp.telemetry.spans_for_tests import SdkSpans, read_spans
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client import Client
from viewstamp.errors import Refusal
from viewstamp.telemetry.sampling import sampled_parent
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch) -> SdkSpans:
    """An application that keeps all of its traces; its provider is OpenTelemetry's global one."""
    made = SdkSpans()
    monkeypatch.setattr(trace, "get_tracer", made.provider.get_tracer)
    return made


async def connected(gateway: FakeGateway, telemetry: Telemetry | None = None) -> Client:
    """Return a client of the gateway."""
    return await viewstamp.connect(
        gateway.address, username="root", password=PASSWORD, telemetry=telemetry
    )


def said(gateway: FakeGateway) -> list[str]:
    """Return the traceparents that came with commands."""
    return [one.trace_parent for request in gateway.received for one in request.traces]


async def test_a_call_is_below_the_applications_span(
    gateway: FakeGateway, application: SdkSpans
) -> None:
    """Without its own telemetry a client makes a CLIENT span where the application's spans are.

    The trace goes on in the cluster. A call outside a span begins no trace.
    """
    async with await connected(gateway) as client:
        await client.streams.create("outside")
        with application.tracer.start_as_current_span("work") as work:
            await client.streams.create("inside")
    call, root = application.spans
    assert root.name == "work" and call.name == "StreamsService/CreateStream"
    assert call.parent is not None and call.context is not None
    assert call.parent.span_id == work.get_span_context().span_id
    assert call.kind is SpanKind.CLIENT and call.status.status_code is StatusCode.UNSET
    told = dict(call.attributes or {})
    assert (told["rpc.method"], told["viewstamp.outcome"]) == ("CreateStream", "ok")
    assert {"viewstamp.op", "viewstamp.revision"} <= set(told)
    (context,) = map(sampled_parent, said(gateway))
    assert context == (f"{call.context.trace_id:032x}", f"{call.context.span_id:016x}")


async def test_a_failure_of_the_cluster_is_an_error_of_the_call(
    gateway: FakeGateway, application: SdkSpans
) -> None:
    """The application's span of a call says why it failed, without the words."""
    async with await connected(gateway) as client:
        gateway.refuse = lambda _: Refusal(Reason.REASON_INTERNAL, "secret")
        with application.tracer.start_as_current_span("work"), pytest.raises(Refusal):
            await client.streams.create("a stream")
        gateway.refuse = lambda _: None
    call, _ = application.spans
    assert call.status.status_code is StatusCode.ERROR and not call.events
    assert (call.attributes or {})["viewstamp.reason"] == "INTERNAL"
    assert "secret" not in call.to_json()


async def test_telemetry_of_the_client_has_the_calls(
    gateway: FakeGateway, application: SdkSpans, tmp_path: Path
) -> None:
    """With its own telemetry the client writes the span, below that of the application."""
    telemetry = Telemetry("client", TelemetrySettings(tmp_path, 0.0))
    async with await connected(gateway, telemetry) as client:
        with application.tracer.start_as_current_span("work") as work:
            await client.streams.create("inside")
    telemetry.close()
    (call,) = read_spans(tmp_path)
    above = work.get_span_context()
    assert (call.trace_id, call.parent_id) == (f"{above.trace_id:032x}", f"{above.span_id:016x}")
    assert said(gateway) == [f"00-{call.trace_id}-{call.span_id}-01"]
    assert [span.name for span in application.spans] == ["work"]


async def test_a_span_that_is_not_sampled_is_followed(
    gateway: FakeGateway, application: SdkSpans, tmp_path: Path
) -> None:
    """In a trace that the application does not keep no call is kept, whatever the ratio."""
    unkept = SdkSpans(ALWAYS_OFF)
    telemetry = Telemetry("client", TelemetrySettings(tmp_path, 1.0))
    with unkept.tracer.start_as_current_span("work"):
        async with await connected(gateway) as first, await connected(gateway, telemetry) as second:
            await first.streams.create("one")
            await second.streams.create("two")
    telemetry.close()
    assert not said(gateway) and not application.spans and not read_spans(tmp_path)


async def test_a_sampler_that_drops_the_call_is_asked(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the provider's sampler drops the call's own span, the cluster gets none."""
    application, dropping = SdkSpans(), TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    monkeypatch.setattr(trace, "get_tracer", dropping.get_tracer)
    async with await connected(gateway) as client:
        with application.tracer.start_as_current_span("work"):
            await client.streams.create("inside")
    assert not said(gateway)


def test_a_client_alone_loads_nothing_of_it() -> None:
    """An application without OpenTelemetry does not load it by the client."""
    code = "import sys, viewstamp.client.tracing as c; c.tracing_of(None)\n"
    code += "print(any(name.startswith('opentelemetry') for name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
