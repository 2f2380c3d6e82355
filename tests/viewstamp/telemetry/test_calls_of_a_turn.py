"""Which calls of a client are sampled, without a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.viewstamp.telemetry.spans_for_tests import Kept
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.client import Client
from viewstamp.client.tracing import ClientTracing
from viewstamp.telemetry.current import make_current
from viewstamp.telemetry.sampling import (
    GROUP_CALLS_MAX,
    CallSampler,
    Sampler,
    TraceContext,
)
from viewstamp.telemetry.spans import Recorder


async def kept_of(
    draw: Callable[[], float], turns: list[int], within: TraceContext | None = None
) -> list[list[bool]]:
    """Begin so many calls in each turn of the loop; return which of them are sampled.

    Each turn ends as the client's own sending ends it. `within` is the span around all calls but
    the first of a turn.
    """
    tracing = ClientTracing(Recorder([Kept()]), Sampler(0.5))
    tracing.calls = CallSampler(0.5, draw)
    begun: list[Any] = []
    submitter: Any = SimpleNamespace(add_command=begun.append)
    client = Client(submitter, None, SimpleNamespace(), tracing)  # type: ignore[arg-type]
    kept = []
    for size in turns:
        begun.clear()
        calls = []
        for number in range(size):
            make_current(within if number else None)
            calls.append(asyncio.ensure_future(client.call(streams.CreateStreamRequest())))
            make_current(None)
        await asyncio.sleep(0)
        tracing.sent()
        kept.append([call.trace is not None for call in begun])
        for call in begun:
            call.future.set_result(SimpleNamespace(header=SimpleNamespace(op=1, revision=1)))
        await asyncio.gather(*calls)
    return kept


async def test_draw_is_for_all_calls_of_a_turn() -> None:
    """Calls of a turn are all kept or none, up to a message's worth; then there is a new draw."""
    many = GROUP_CALLS_MAX
    draws = [0.9, 0.0, 0.9, 0.0, 0.9, 0.9, 0.0]
    kept = await kept_of(iter(draws).__next__, [3, 2, 1, 1, many + 2, many])
    assert kept == [
        [False] * 3,
        [True] * 2,
        [False],
        [True],
        [False] * (many + 2),
        [True] * many,
    ]


async def test_new_draw_within_a_turn_can_keep() -> None:
    """If a turn begins more calls than one draw covers, the rest is drawn anew."""
    kept = await kept_of(iter([0.9, 0.0, 0.9]).__next__, [2 * GROUP_CALLS_MAX + 1])
    assert kept == [[False] * GROUP_CALLS_MAX + [True] * GROUP_CALLS_MAX + [False]]


async def test_calls_within_a_span_are_always_kept() -> None:
    """A call within a sampled span belongs to it, whatever the draw for the others."""
    within = TraceContext(32 * "c", 16 * "d")
    assert await kept_of(lambda: 0.9, [3, 1], within) == [[False, True, True], [False]]
