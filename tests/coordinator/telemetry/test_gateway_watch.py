"""Where traces begin at the gateway, how calls end, and which prepares have a span."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.base.command_traces import CommandTrace
from coordinator.gateway.routes import Routes
from coordinator.gateway.telemetry import GatewayWatch
from coordinator.mux import types as mux_types
from coordinator.replica.batcher import AnsweredSpan, PrepareBatch, Reply
from coordinator.stages.outgoing import traced
from coordinator.telemetry.metrics import ReplicaMetrics
from coordinator.telemetry.watch import PREPARE_SPANS_PER_SECOND_MAX, ReplicaWatch
from tests.viewstamp.telemetry.spans_for_tests import Kept
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.routing import MethodKind
from viewstamp.telemetry.rpc import rpc_names
from viewstamp.telemetry.sampling import Sampler, format_trace_parent, new_root, new_trace_id
from viewstamp.telemetry.spans import Recorder, SpanOutcome, SpanRole

REGISTER = "/viewstamp.api.sessions.v1.SessionsService/RegisterSession"
REGISTER_CODE, END_CODE, UNKNOWN_CODE = 1, 2, 9_999
PARENT = f"00-{32 * 'a'}-{16 * 'b'}"
RATIOS = {"all": 1.0, "none": 0.0}


def watch(ratio: float, metrics: ReplicaMetrics | None = None) -> tuple[GatewayWatch, Kept]:
    """Return a gateway's watch, and its records."""
    kept = Kept()
    return GatewayWatch(Routes(), Recorder([kept]), Sampler(ratio), metrics), kept


def request(*traces: tuple[int, int, str]) -> submit_pb2.CommandRequest:
    """Return two registrations and three ends of sessions, with these traces."""
    return submit_pb2.CommandRequest(
        spans=[
            submit_pb2.Span(code=REGISTER_CODE, count=2),
            submit_pb2.Span(code=END_CODE, count=3),
        ],
        traces=[
            submit_pb2.CallTrace(index=index, count=count, trace_parent=parent)
            for index, count, parent in traces
        ],
    )


@pytest.mark.parametrize(
    ("trace_parent", "ratio", "parent_id"),
    [
        (PARENT + "-01", "none", 16 * "b"),
        (PARENT + "-00", "all", None),
        ("", "all", ""),
        ("", "none", None),
        ("malformed", "all", ""),
        ("malformed", "none", None),
    ],
)
def test_parent_decides_before_the_ratio(
    trace_parent: str, ratio: str, parent_id: str | None
) -> None:
    """A caller's decision is followed; without one the ratio decides."""
    begun = watch(RATIOS[ratio])[0].unary(REGISTER, trace_parent)
    assert (None if begun is None else begun.parent_id) == parent_id
    if begun is not None:
        assert (begun.trace_id == 32 * "a") == bool(parent_id)


def test_unknown_paths_are_not_named() -> None:
    """A path that no service serves comes from the caller, and enters no span."""
    assert watch(1.0)[0].unary("/some.Service/WithASecretInIt", PARENT + "-01") is None


def test_calls_of_a_request_are_followed() -> None:
    """Each sampled call is traced under its own method; impossible calls are ignored."""
    traces = (
        (1, 1, PARENT + "-01"),
        (2, 3, PARENT + "-03"),
        (0, 1, PARENT + "-00"),
        (5, 1, PARENT + "-01"),
        (3, 1, "malformed"),
    )
    begun = watch(1.0)[0].packed(request(*traces), user_id=7)
    assert [(one.names.attributes["rpc.method"], one.index, one.count) for one in begun] == [
        ("RegisterSession", 1, 1),
        ("EndSession", 2, 3),
    ]
    assert {one.user_id for one in begun} == {7}


def test_no_more_traces_than_calls() -> None:
    """A request gets at most as many spans as calls, however often it names them."""
    parent = PARENT + "-01"
    traces = [(index, 1, parent) for index in (3, 0, 1, 2, 4)] * 10
    begun = watch(0.0)[0].packed(request(*traces), user_id=7)
    assert sum(one.command_count for one in begun) == 5

    overlapping = [(0, 5, parent), (0, 5, parent), (1, 4, parent), (2, 1, parent)]
    begun = watch(0.0)[0].packed(request(*overlapping), user_id=7)
    assert [(one.index, one.count) for one in begun] == [(0, 5)]

    too_long = [(0, 6, parent), (4, 1, parent)]
    begun = watch(0.0)[0].packed(request(*too_long), user_id=7)
    assert [(one.index, one.count) for one in begun] == [(4, 1)]


def test_request_without_traces_is_one_call() -> None:
    """A request without sampled calls is sampled as a whole; an acknowledgement is not a call."""
    gateway = watch(1.0)[0]
    (begun,) = gateway.packed(request(), user_id=7)
    assert (begun.index, begun.count) == (0, 5)
    assert not gateway.packed(submit_pb2.CommandRequest(acked=3), user_id=7)
    unknown = submit_pb2.CommandRequest(spans=[submit_pb2.Span(code=UNKNOWN_CODE, count=1)])
    assert not gateway.packed(unknown, user_id=7)


def test_answers_are_told_apart() -> None:
    """The span of each call of a request has its own revision and its own refusal."""
    gateway, kept = watch(0.0)
    parents = [(index, 1, PARENT + "-01") for index in (1, 2, 4)]
    begun = gateway.packed(request(*parents), user_id=7)
    error = errors_pb2.IndexedError(
        index=2, error=errors_pb2.Error(reason=Reason.REASON_INTERNAL, message="secret")
    )
    reply = Reply(0, 9, 100, (AnsweredSpan(b"", ()), AnsweredSpan(b"", (error,))))
    gateway.answered(begun, reply)
    told = [
        (s.attributes["viewstamp.revision"], s.attributes["viewstamp.outcome"], s.status)
        for s in kept.spans
    ]
    assert told == [
        (101, "ok", SpanOutcome.UNSET),
        (102, "ok", SpanOutcome.UNSET),
        (104, "INTERNAL", SpanOutcome.ERROR),
    ]
    assert "secret" not in repr(kept.spans)


def test_a_kept_reply_with_fewer_spans_is_an_answer() -> None:
    """A number without a fingerprint finds another request's reply, and the traces still end."""
    gateway, kept = watch(0.0)
    parents = [(index, 1, PARENT + "-01") for index in (1, 2)]
    gateway.answered(gateway.packed(request(*parents), user_id=7), Reply(0, 9, 100, ()))
    assert [span.attributes["viewstamp.outcome"] for span in kept.spans] == ["ok", "ok"]


def test_reads_of_a_request_have_one_revision() -> None:
    """Commands have a revision each; reads answered together share the revision of the read."""
    read = next(each for each in Routes().methods() if each.kind is MethodKind.QUERY)
    reads = submit_pb2.CommandRequest(
        spans=[submit_pb2.Span(code=read.code, count=3)],
        traces=[
            submit_pb2.CallTrace(index=index, count=1, trace_parent=PARENT + "-01")
            for index in range(3)
        ],
    )
    gateway, kept = watch(0.0)
    gateway.answered(gateway.packed(reads, user_id=7), Reply(0, 9, 1000, (AnsweredSpan(b"", ()),)))
    assert [span.attributes["viewstamp.revision"] for span in kept.spans] == [1000] * 3


def test_refusals_before_the_log_are_counted() -> None:
    """A refusal counts, sampled or not, and has its span where the call is sampled."""
    metrics = ReplicaMetrics(str)
    gateway, kept = watch(1.0, metrics)
    refusal = Refusal(Reason.REASON_OVERLOADED, "try again")
    gateway.refused(gateway.packed(request(), user_id=7), refusal)
    gateway.refused((), refusal)
    (span,) = kept.spans
    assert (span.attributes["viewstamp.reason"], span.status) == ("OVERLOADED", SpanOutcome.ERROR)
    samples = {s.name: s.value for family in metrics.families() for s in family.samples}
    assert samples["viewstamp_refusals_total"] == 2


class Applying:
    """A replica's watch that is told of prepares."""

    def __init__(self) -> None:
        """Trace every prepare."""
        self.kept = Kept()
        self.watch = ReplicaWatch(Recorder([self.kept]), None, Sampler(1.0), is_alone=lambda: True)

    def apply(self, op: int, batch: PrepareBatch | None) -> None:
        """Take a prepare from admission until it is applied."""
        prepares: list[Any] = [prepare(op)]
        self.watch.persisting(prepares, lambda _: batch)
        self.watch.persisted(prepares)
        self.watch.committed(op)
        self.watch.handed_over(op)
        self.watch.applied(mux_types.Applied(op, 0, op, (), ()))


def prepare(op: int) -> Any:
    """Return a prepare of one command."""
    header = SimpleNamespace(op=op, view=0, first_revision=op, command_count=1, size=3)
    return SimpleNamespace(op=op, header=header)


def sampled() -> CommandTrace:
    """Return a sampled command."""
    return CommandTrace(new_trace_id(), "", rpc_names("a.B/C"), time.time_ns())


def test_replayed_prepares_leave_nothing() -> None:
    """A prepare that no caller waits for, as in a replay, has no span."""
    replica = Applying()
    replica.apply(1, None)
    assert not replica.kept.spans


def test_prepares_are_bounded_and_sampled_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second has a bounded number of prepares with a span, plus those of sampled commands."""
    monkeypatch.setattr(time, "time_ns", lambda: 1_700_000_000_000_000_000)
    replica = Applying()
    for op in range(PREPARE_SPANS_PER_SECOND_MAX + 10):
        replica.apply(op, PrepareBatch(b"abc", 1, [], []))
    assert len(replica.kept.spans) == PREPARE_SPANS_PER_SECOND_MAX
    replica.apply(9_999, PrepareBatch(b"abc", 1, [], [], traces=[sampled()]))
    assert [span.name for span in replica.kept.spans[PREPARE_SPANS_PER_SECOND_MAX:]] == [
        "queue",
        "journal",
        "replicate",
        "commit",
        "apply",
        "prepare",
    ]


def test_traceparents_are_added_without_the_log() -> None:
    """Adding traceparents to an encoded batch gives the same batch with them, in one message."""
    batch = domain_pb2.Batch(
        sequence=3, op=4, items=[domain_pb2.Item(cut=domain_pb2.CutItem(generation=2))]
    )
    logged = domain_pb2.ApplyRequest(batch=batch).SerializeToString()
    told = [format_trace_parent(new_root()) for _ in range(3)]
    sent = domain_pb2.ApplyRequest.FromString(logged + traced(told)).batch
    assert list(sent.trace_parents) == told
    sent.ClearField("trace_parents")
    assert sent == batch and traced([]) == b""


STREAMS = mux_types.Stage.STREAMS


@pytest.mark.parametrize(
    ("item", "concerned"),
    [
        (domain_pb2.Item(command=domain_pb2.CommandItem(first_revision=8, count=2)), [0]),
        (domain_pb2.Item(command=domain_pb2.CommandItem(first_revision=8, count=3)), [0]),
        (domain_pb2.Item(command=domain_pb2.CommandItem(first_revision=8, count=4)), [0, 3]),
        (domain_pb2.Item(resolve=domain_pb2.ResolveItem(first_revision=11, count=1)), [3]),
        (domain_pb2.Item(effect=domain_pb2.EffectItem(revision=9)), [0]),
        (domain_pb2.Item(effect=domain_pb2.EffectItem(revision=10)), []),
        (domain_pb2.Item(cut=domain_pb2.CutItem(generation=1)), []),
    ],
)
def test_only_concerned_commands_visit(item: domain_pb2.Item, concerned: list[int]) -> None:
    """A batch belongs to the traces of exactly the commands that it concerns.

    The prepare begins at revision 8; two commands from its start and one at offset 3 are sampled.
    """
    replica = Applying()
    traces = [sampled(), sampled()]
    traces[0].count, traces[1].offset = 2, 3
    batch = PrepareBatch(b"abc", 4, [], [], traces=traces)
    replica.watch.persisting([prepare(8)], lambda _: batch)
    sent = replica.watch.sent(STREAMS, domain_pb2.Batch(sequence=1, op=8, items=[item]))
    replica.watch.answered(STREAMS, 1)
    replica.watch.applied(mux_types.Applied(8, 0, 8, (), ()))
    found = {trace.offset for trace in traces for text in sent if trace.trace_id in text}
    assert sorted(found) == concerned and len(sent) == len(concerned)
    spans = [(s.name, s.parent_id) for s in replica.kept.spans if s.kind is SpanRole.CLIENT]
    above = {trace.offset: trace.server(0).span_id for trace in traces}
    assert spans == [("stage streams", above[offset]) for offset in concerned]
    told = {text[36:52] for text in sent}
    assert told == {s.context.span_id for s in replica.kept.spans if s.kind is SpanRole.CLIENT}


def test_batches_of_reads_are_not_traced() -> None:
    """Reads travel without a sequence and belong to no prepare, whatever op precedes them."""
    replica = Applying()
    batch = PrepareBatch(b"abc", 1, [], [], traces=[sampled()])
    replica.watch.persisting([prepare(8)], lambda _: batch)
    item = domain_pb2.Item(command=domain_pb2.CommandItem(first_revision=8, count=1))
    assert not replica.watch.sent(STREAMS, domain_pb2.Batch(op=8, items=[item]))
