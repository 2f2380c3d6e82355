"""Sampling, and the `traceparent` that carries it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import chain
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viewstamp.telemetry.sampling import (
    GROUP_CALLS_MAX,
    CallSampler,
    Sampler,
    TraceContext,
    context_in,
    format_trace_parent,
    new_root,
    new_span_id,
    parse_trace_parent,
)

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

REFUSED = (
    "",
    f"00-{TRACE}-{SPAN}",
    f"00-{TRACE}-{SPAN}-1",
    f"00-{TRACE.upper()}-{SPAN}-01",
    f"ff-{TRACE}-{SPAN}-01",
    f"00-{32 * '0'}-{SPAN}-01",
    f"00-{TRACE}-{16 * '0'}-01",
    f"00-{TRACE}-{SPAN}-01\n",
    f"00-{TRACE}-{SPAN}-zz",
    "a bearer token that must not be logged",
)


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1))
def test_what_is_formatted_is_parsed(trace: int, span: int) -> None:
    """Every sampled span comes back as itself from the traceparent that it is sent as."""
    context = TraceContext(f"{trace:032x}", f"{span:016x}")
    parent = parse_trace_parent(format_trace_parent(context))
    assert parent is not None
    assert parent.context == context and parent.is_sampled
    assert context_in(format_trace_parent(context)) == context


@pytest.mark.parametrize(("flags", "sampled"), [("00", False), ("01", True), ("03", True)])
def test_flag_decides(flags: str, sampled: bool) -> None:
    """The lowest bit of the flags says whether the trace is sampled; others mean something else."""
    parent = parse_trace_parent(f"00-{TRACE}-{SPAN}-{flags}")
    assert parent is not None and parent.is_sampled is sampled


@pytest.mark.parametrize("text", REFUSED)
def test_malformed_is_ignored(text: str) -> None:
    """Text that the recommendation calls invalid is not a traceparent."""
    assert parse_trace_parent(text) is None


def test_ratio_is_kept() -> None:
    """A draw below the ratio keeps a trace; 0 keeps none, 1 keeps all."""
    draws = [0.0, 0.009, 0.01, 0.5, 0.999_999]
    kept = {
        ratio: [Sampler(ratio, iter([draw]).__next__).keeps() for draw in draws]
        for ratio in (0.0, 0.01, 1.0)
    }
    assert kept == {0.0: 5 * [False], 0.01: [True, True, False, False, False], 1.0: 5 * [True]}


def kept_of(sampler: CallSampler, groups: Iterable[int]) -> list[list[bool]]:
    """Send groups of so many calls through a sampler, as the client does."""
    kept = []
    for size in groups:
        kept.append([keeps(sampler) for _ in range(size)])
        sampler.end_group()
    return kept


def keeps(sampler: CallSampler) -> bool:
    """Lead one call past a sampler."""
    if not sampler.left:
        sampler.begin_group()
    sampler.left -= 1
    return sampler.is_kept


@pytest.mark.parametrize("ratio", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("groups", [[12], [1, 1, 4, 6], 12 * [1]])
def test_each_call_is_kept_as_often(ratio: float, groups: list[int]) -> None:
    """Each call has that probability, whatever its number and the size of its message."""
    random = Random(20261121)
    clients, calls = 10_000, 12
    sums = [0] * calls
    for _ in range(clients):
        kept = chain.from_iterable(kept_of(CallSampler(ratio, random.random), groups))
        sums = [total + one for total, one in zip(sums, kept, strict=True)]
    # Five standard deviations: with its seeded generator this passes always or never.
    error = 5 * math.sqrt(ratio * (1 - ratio) / clients)
    assert all(abs(total / clients - ratio) < error for total in sums)


def test_calls_that_are_sent_together_are_kept_together() -> None:
    """A draw is for all that are sent in one go, up to a message's worth."""
    draws = iter([0.0, 0.9, 0.0, 0.9, 0.0])
    kept = kept_of(CallSampler(0.5, draws.__next__), (5, 1, 1, GROUP_CALLS_MAX + 1))
    assert kept == [5 * [True], [False], [True], [*(GROUP_CALLS_MAX * [False]), True]]


def test_groups_of_all_and_none() -> None:
    """A ratio of 1 keeps every call, one of 0 none."""
    assert all(map(all, kept_of(CallSampler(1.0), range(1_000))))
    assert not any(map(any, kept_of(CallSampler(0.0), range(1_000))))


@pytest.mark.parametrize("ratio", [-0.1, 1.1, float("nan")])
def test_no_ratio_is_refused(ratio: float) -> None:
    """A wrong ratio is refused with a right one."""
    with pytest.raises(ValueError, match="from 0 to 1"):
        Sampler(ratio)


def test_new_ids_have_their_form() -> None:
    """New ids have 32 and 16 hexadecimal digits, and do not repeat."""
    roots = {new_root() for _ in range(1_000)}
    assert len(roots) == 1_000
    assert all(re.fullmatch("[0-9a-f]{32}", root.trace_id) for root in roots)
    assert re.fullmatch("[0-9a-f]{16}", new_span_id())
