"""Consecutive calls that are sampled together: one note, and spans for each of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.base.command_traces import CommandTrace
from coordinator.gateway.routes import Routes
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.mux import types as mux_types
from coordinator.replica.batcher import AnsweredSpan, PrepareBatch, Reply
from coordinator.telemetry.watch import ReplicaWatch
from services.runtime.watch import ApplyWatch
from tests.viewstamp.telemetry.spans_for_tests import Kept, TraceSpan
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.telemetry.current import make_current
from viewstamp.telemetry.sampling import (
    Sampler,
    TraceContext,
    are_plain,
    context_in,
    format_trace_parent,
    new_root,
    new_root_trace_parent,
    sampled_parent,
)
from viewstamp.telemetry.settings import Telemetry, TelemetrySettings
from viewstamp.telemetry.spans import Recorder, SpanRole

REGISTER_CODE, END_CODE, UNKNOWN_CODE = 1, 2, 9_999
STREAMS = mux_types.Stage.STREAMS
FIRST_REVISION, OP = 1_000, 7
STEPS = ("queue", "journal", "replicate", "commit", "apply")


def gateway_of(kept: Kept) -> GatewayWatch:
    """Return a gateway's watch that begins no traces of its own."""
    return GatewayWatch(Routes(), Recorder([kept]), Sampler(0.0), None)


def asked(
    sizes: Sequence[tuple[int, int]], parents: Sequence[tuple[int, int, str]]
) -> submit_pb2.CommandRequest:
    """Return spans of so many calls of a method, with these traces."""
    return submit_pb2.CommandRequest(
        spans=[submit_pb2.Span(code=code, count=count) for code, count in sizes],
        traces=[
            submit_pb2.CallTrace(index=index, count=count, trace_parent=text)
            for index, count, text in parents
        ],
    )


def places(traces: Sequence[CommandTrace]) -> list[tuple[int, int, int, int]]:
    """Return index, span, place in it, and number of calls of each."""
    return [(one.index, one.span, one.span_index, len(one.trace_ids)) for one in traces]


def test_calls_in_a_row_are_begun_together() -> None:
    """A row ends at a call that is not sampled, at the end of its span, and at a batch."""
    roots = {index: new_root() for index in (0, 1, 2, 3, 4, 6, 7, 8)}
    said = [(index, 1, format_trace_parent(root)) for index, root in roots.items()]
    said[-1] = (8, 2, said[-1][2])
    request = asked([(REGISTER_CODE, 3), (END_CODE, 7)], said)
    begun = gateway_of(Kept()).packed(request, user_id=7)
    assert places(begun) == [(0, 0, 0, 3), (3, 1, 0, 2), (6, 1, 3, 2), (8, 1, 5, 1)]
    followed = [
        TraceContext(*ids)
        for one in begun
        for ids in zip(one.trace_ids, one.parent_ids, strict=True)
    ]
    assert followed == list(roots.values())
    assert [one.count for one in begun] == [1, 1, 1, 2]


def test_nothing_is_joined_to_a_batch() -> None:
    """A call that claims a command of a batch is ignored, though it follows the batch's first."""
    said = [(0, 3, new_root_trace_parent()), (1, 1, new_root_trace_parent())]
    begun = gateway_of(Kept()).packed(asked([(END_CODE, 4)], [*said, (3, 1, said[0][2])]), 7)
    assert places(begun) == [(0, 0, 0, 1), (3, 0, 3, 1)]


def test_nothing_is_joined_to_what_nobody_serves() -> None:
    """Calls of an unknown method have no spans, and those behind them have their own."""
    said = [(index, 1, new_root_trace_parent()) for index in range(5)]
    request = asked([(REGISTER_CODE, 1), (UNKNOWN_CODE, 2), (END_CODE, 2)], said)
    begun = gateway_of(Kept()).packed(request, user_id=7)
    assert places(begun) == [(0, 0, 0, 1), (3, 2, 0, 2)]


class Way:
    """One request whose calls are all sampled, alone in its prepare."""

    def __init__(self, count: int) -> None:
        """Begin the spans of so many calls, and admit their prepare."""
        self.kept, self.applied = Kept(), Kept()
        self.gateway = gateway_of(self.kept)
        self.roots = [new_root() for _ in range(count)]
        said = [(index, 1, format_trace_parent(root)) for index, root in enumerate(self.roots)]
        self.traces = self.gateway.packed(asked([(REGISTER_CODE, count)], said), user_id=7)
        (self.trace,) = self.traces
        self.trace.queued_ns = self.trace.started_ns
        self.watch = ReplicaWatch(Recorder([self.kept]), None, Sampler(1.0), is_alone=lambda: True)
        telemetry = Telemetry("streams", TelemetrySettings())
        telemetry.recorder = Recorder([self.applied])
        self.service = ApplyWatch("streams", telemetry)
        header = SimpleNamespace(
            op=OP, view=0, first_revision=FIRST_REVISION, command_count=count, size=1
        )
        prepares: list[Any] = [SimpleNamespace(op=OP, header=header)]
        batch = PrepareBatch(b"", count, [], [], traces=self.traces)
        self.watch.persisting(prepares, lambda _: batch)
        self.watch.persisted(prepares)
        self.watch.committed(OP)
        self.watch.handed_over(OP)

    def visit(self, sequence: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Send a batch with items about these commands of the prepare, and answer it."""
        items = [
            domain_pb2.Item(
                command=domain_pb2.CommandItem(
                    first_revision=FIRST_REVISION + start, count=stop - start
                )
            )
            for start, stop in ranges
        ]
        sent = domain_pb2.Batch(sequence=sequence, op=OP, items=items)
        sent.trace_parents.extend(self.watch.sent(STREAMS, sent))
        self.service.end(sent, self.service.begin(sent))
        self.watch.answered(STREAMS, sequence)

    def apply(self, *errors: errors_pb2.IndexedError) -> None:
        """Apply the prepare, and answer the request."""
        self.watch.applied(mux_types.Applied(OP, 0, 0, (), ()))
        reply = Reply(0, OP, FIRST_REVISION, (AnsweredSpan(b"", errors),))
        self.gateway.answered(self.traces, reply)

    def spans(self, call: int) -> list[TraceSpan]:
        """Return the spans of a call here, in the order of their creation."""
        return [one for one in self.kept.spans if one.context.trace_id == self.roots[call].trace_id]


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 100])
def test_each_call_has_its_own_spans(count: int) -> None:
    """Each call has its spans below its own caller, with its own revision, and its link."""
    way = Way(count)
    way.visit(1, [(0, count)])
    way.apply()
    (prepare,) = [one for one in way.kept.spans if one.name == "prepare"]
    for call, root in enumerate(way.roots):
        *steps, stage, server = way.spans(call)
        assert tuple(one.name for one in steps) == STEPS
        assert (stage.name, server.name) == ("stage streams", "SessionsService/RegisterSession")
        assert server.parent_id == root.span_id
        assert {one.parent_id for one in (*steps, stage)} == {server.context.span_id}
        told = {
            (one.attributes["viewstamp.op"], one.attributes["viewstamp.revision"])
            for one in (*steps, stage, server)
        }
        assert told == {(OP, FIRST_REVISION + call)}
        assert server.attributes["viewstamp.outcome"] == "ok"
        assert prepare.links[call] == server.context
        applied = way.applied.spans[call]
        assert (applied.context.trace_id, applied.parent_id) == stage.context
    ids = [one.context for one in (*way.kept.spans, *way.applied.spans)]
    assert len(set(ids)) == len(ids) and len(prepare.links) == len(way.applied.spans) == count


RANGES = st.lists(st.integers(0, 12), min_size=2, max_size=6, unique=True).map(
    lambda ends: list(pairwise(sorted(ends)))[::2]
)


@given(st.lists(RANGES, max_size=4))
def test_only_calls_that_a_batch_is_about_visit(visits: list[list[tuple[int, int]]]) -> None:
    """Only the calls that a batch concerns have visits, each with its own number."""
    count = 12
    way = Way(count)
    for sequence, ranges in enumerate(visits, 1):
        way.visit(sequence, ranges)
    way.apply()
    for call in range(count):
        about = [
            sequence
            for sequence, ranges in enumerate(visits)
            if any(start <= call < stop for start, stop in ranges)
        ]
        spans = way.spans(call)
        stages = [one for one in spans if one.kind is SpanRole.CLIENT]
        assert len(stages) == len(about)
        # Applying begins with the answer of the last visit.
        (apply,) = [one for one in spans if one.name == "apply"]
        (commit,) = [one for one in spans if one.name == "commit"]
        assert apply.start_ns == (stages[-1].end_ns if stages else commit.end_ns)
        assert {one.attributes["viewstamp.revision"] for one in spans} == {FIRST_REVISION + call}
    make_current(None)


def test_overlapping_items_are_one_visit() -> None:
    """A batch with several items about a command is one visit of it, in any order."""
    way = Way(6)
    way.visit(1, [(3, 5), (0, 2), (1, 4)])
    way.apply()
    found = [sum(one.kind is SpanRole.CLIENT for one in way.spans(call)) for call in range(6)]
    assert found == [1, 1, 1, 1, 1, 0]


def test_refused_calls_are_told_apart() -> None:
    """Of consecutive calls exactly the refused ones say so."""
    way = Way(4)
    reasons = {1: Reason.REASON_STREAM_EXISTS, 3: Reason.REASON_INTERNAL}
    errors = [
        errors_pb2.IndexedError(index=index, error=errors_pb2.Error(reason=reason))
        for index, reason in reasons.items()
    ]
    way.apply(*errors)
    outcomes = [way.spans(call)[-1].attributes["viewstamp.outcome"] for call in range(4)]
    assert outcomes == ["ok", "STREAM_EXISTS", "ok", "INTERNAL"]


PLAIN = new_root_trace_parent()
NOT_PLAIN: tuple[list[str], ...] = (
    [PLAIN[:-1], "1" + PLAIN],
    [PLAIN, PLAIN[:-1]],
    [PLAIN + PLAIN],
    [f"00-{32 * 'A'}-{16 * 'a'}-01"],
    [PLAIN, PLAIN[:-2] + "00"],
    ["01" + PLAIN[2:]],
    [f"00-{32 * '0'}-{16 * 'a'}-01"],
    [f"00-{32 * 'a'}-{16 * '0'}-01"],
    [PLAIN[:-1] + "\n"],
)


@pytest.mark.parametrize("texts", NOT_PLAIN)
def test_only_plain_traceparents_are_read_by_place(texts: list[str]) -> None:
    """A traceparent that we did not make is not read by the places of its characters."""
    assert not are_plain(texts)


def test_plain_traceparents_are_read_by_place() -> None:
    """A traceparent that we made is read by place, and gives the same as parsing does."""
    texts = [new_root_trace_parent() for _ in range(100)]
    assert are_plain(texts) and are_plain([]) and len(set(texts)) == 100
    assert list(map(context_in, texts)) == list(map(sampled_parent, texts))
