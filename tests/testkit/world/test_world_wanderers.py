"""Clients that use the whole interface in a world: what they send, what comes of it, who judges it.

Method: whole runs without faults; then single answers, and a session that forgets what it said.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from random import Random
from typing import Any, NamedTuple
from unittest.mock import Mock

import grpc
import grpc.aio
import pytest

from coordinator.gateway import audit
from testkit.world import operator_acts, wanderer_acts, wanderer_brokers, wanderer_offsets
from testkit.world.clients import Access
from testkit.world.options import WorldOptions, draw
from testkit.world.requests import Requests
from testkit.world.run import WorldOutcome
from testkit.world.seeds import run_seed
from testkit.world.wanderers import Wanderer
from testkit.world.watched import Encoding
from testkit.world.workload import STREAM
from viewstamp.api.common.v1.common_pb2 import Identifier
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import CommittedOffset, FoundOffset
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.streams.v1.streams_pb2 import Watermarks
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client import RawReply, RawSession
from viewstamp.client.errors import ProtocolError, TimedOut
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USERNAME

QUIET = WorldOptions(seconds=4, clients=1, callers=1, faults=())


def visited(seed: int, wanderers: int, operators: int) -> WorldOutcome:
    """Run a world without faults that has these visitors."""
    return run_seed(seed, replace(QUIET, wanderers=wanderers, operators=operators))


def acts_of(outcome: WorldOutcome) -> set[str]:
    """Return the acts that visitors tried."""
    words = [mark.split(": ") for mark in outcome.marks if mark.startswith("visitors: ")]
    return {act for _, act, _ in words}


def test_requests_are_of_every_method() -> None:
    """Every method comes, also within transactions, and the same seed makes the same requests."""
    requests, again = Requests(Random(1)), Requests(Random(1))
    made = [requests.any() for _ in range(2_000)]
    assert {type(each) for each in made} == {method.request for method in requests.methods}
    assert [again.any() for _ in range(2_000)] == made
    assert any(each.parts for each in made if isinstance(each, submit_pb2.TransactRequest))


def test_requests_leave_what_is_judged_alone() -> None:
    """Nothing names root or the stream of the registers, which others are judged by."""
    requests = Requests(Random(2))
    texts = [str(requests.any()) for _ in range(2_000)]
    assert not [text for text in texts if f'"{STREAM}"' in text or f'"{ROOT_USERNAME}"' in text]


def test_what_answers_told_comes_back() -> None:
    """An id that an answer told is named by later requests."""
    requests = Requests(Random(3))
    requests.learn(streams_pb2.CreateStreamResponse(stream_id=77))
    assert any(
        each.stream == Identifier(id=77)
        for each in (requests.any() for _ in range(2_000))
        if isinstance(each, streams_pb2.GetStreamRequest)
    )


def test_seeds_have_visitors_or_none() -> None:
    """Some seeds have wanderers, some operators, some both and some neither."""
    drawn = [draw(seed) for seed in range(1, 100)]
    assert {(each.wanderers > 0, each.operators > 0) for each in drawn} == {
        (False, False), (False, True), (True, False), (True, True),
    }  # fmt: skip


@pytest.mark.long
def test_wanderers_are_one_run_of_their_seed() -> None:
    """A run with wanderers is good, many acts come to an end, and it is the same run again."""
    outcome = visited(1, 2, 0)
    assert outcome.violations == []
    assert len(acts_of(outcome)) > len(wanderer_acts.ACTS) // 2
    assert visited(1, 2, 0).digest == outcome.digest


@pytest.mark.long
def test_operators_are_good() -> None:
    """A run with operators is good: snapshots come and go, primaries step down."""
    outcome = visited(2, 0, 2)
    assert outcome.violations == []
    assert len(acts_of(outcome)) > len(operator_acts.ACTS) // 2


def test_watched_runs_are_good() -> None:
    """Telemetry and the audit log of coordinators take all that visitors do."""
    outcome = run_seed(4, replace(QUIET, wanderers=1, operators=1, is_watched=True))
    assert outcome.violations == []


@pytest.mark.parametrize("part", ["request_record", "call_record"])
def test_a_record_that_cannot_be_made_fails_a_run(
    monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """A defect in what makes records of the audit log is seen, although no caller is told of it."""

    def fail(*_: object) -> None:
        raise KeyError("planted")

    monkeypatch.setattr(audit, part, fail)
    outcome = run_seed(4, replace(QUIET, wanderers=1, is_watched=True))
    assert any("audit log" in violation for violation in outcome.violations)


def test_a_span_that_cannot_be_encoded_fails_a_run() -> None:
    """Notes that raise, and notes that count wrongly, are told."""

    class WrongNotes(NamedTuple):
        text: str

        @property
        def span_count(self) -> int:
            return 1

        def encoded(self) -> tuple[str]:
            return (self.text,)

    told: list[str] = []
    for text in ("{}", "{}, {}", "{"):
        Encoding(told.append).put(WrongNotes(text))
    assert [line.partition(":")[0] for line in told] == [
        "2 spans are counted as 1", "a span cannot be encoded",
    ]  # fmt: skip


class ForgetfulSession(RawSession):
    """A session that gets another result at each answer."""

    answers = 0

    async def submit_request(
        self, number: int, acked: int, spans: Sequence[submit_pb2.Span]
    ) -> RawReply:
        """Return the answer with a result that only this one has."""
        reply = await super().submit_request(number, acked, spans)
        ForgetfulSession.answers += 1
        reply.message.command.spans.add(results=str(self.answers).encode())
        return reply


@pytest.mark.long
def test_a_second_answer_to_one_request_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is repeated and gets another answer fails the run."""
    monkeypatch.setattr(wanderer_acts, "RawSession", ForgetfulSession)
    monkeypatch.setattr(wanderer_acts, "ACTS", ((1, wanderer_acts.repeat),))
    assert any("different answers to one request" in each for each in visited(3, 1, 0).violations)


def test_visitors_use_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports and changes of offsets succeed and are refused, by users and by root."""
    acts = ((1, wanderer_offsets.report_data), (1, wanderer_offsets.change_offsets))
    monkeypatch.setattr(wanderer_acts, "ACTS", acts)
    monkeypatch.setattr(operator_acts, "ACTS", acts)
    outcome = visited(5, 2, 1)
    assert outcome.violations == []
    for _, act in acts:
        name = f"visitors: {act.__name__}: "
        assert outcome.marks[f"{name}done"] > 10
        assert outcome.marks[f"{name}PARTITION_NOT_FOUND"] and len(acts_of(outcome)) >= 2


def test_brokers_pass_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker registers, has a topic and is gone in one transaction, and nobody sees it."""
    acts = ((1, wanderer_brokers.pass_by), (1, wanderer_brokers.ask_for_brokers))
    monkeypatch.setattr(wanderer_acts, "ACTS", acts)
    monkeypatch.setattr(operator_acts, "ACTS", acts)
    outcome = visited(6, 2, 1)
    assert outcome.violations == []
    for _, act in acts:
        assert outcome.marks[f"visitors: {act.__name__}: done"] > 10
    assert outcome.marks["visitors: pass_by: NOT_ENOUGH_BROKERS"]
    assert outcome.marks["visitors: ask_for_brokers: BROKER_NOT_FOUND"]


Told = CommittedOffset | FoundOffset | Watermarks


def told_by(act: Callable[[Wanderer], Coroutine[Any, Any, None]], told: Told) -> list[str]:
    """Return what fails in an act to which the cluster tells this of one partition."""

    def telling(kind: type[Told]) -> Callable[..., AsyncIterator[Told]]:
        async def answer(*_: object, **__: object) -> AsyncIterator[Told]:
            if isinstance(told, kind):
                yield told

        return answer

    async def done(*_: object, **__: object) -> None:
        pass

    failures: list[str] = []
    access = Access(["10.0.0.1:1"], "")
    wanderer = Wanderer("wander0", 1, access, failures.append, Counter(), is_root=False)
    facade = Mock(create=done, report_partition_ends=done, truncate_partitions=done)
    facade.configure_mock(
        watermarks=telling(Watermarks),
        fetch_offsets=telling(CommittedOffset),
        find_offsets=telling(FoundOffset),
    )
    wanderer.client = Mock(streams=facade, topics=facade, groups=facade)
    asyncio.run(act(wanderer))
    return failures


@pytest.mark.parametrize(
    ("told", "is_right"),
    [
        (CommittedOffset(partition=1, offset=7), True),
        (CommittedOffset(offset=7, start_offset=0, end_offset=10, lag=3), True),
        (CommittedOffset(offset=2, start_offset=4, end_offset=10, lag=6), True),
        (CommittedOffset(offset=12, start_offset=4, end_offset=10, lag=0), True),
        (CommittedOffset(offset=7, start_offset=0, end_offset=10, lag=4), False),
        (CommittedOffset(offset=7, start_offset=0, end_offset=10), False),
        (CommittedOffset(offset=7, end_offset=10, start_offset=11, lag=0), False),
        (CommittedOffset(offset=7, start_offset=3), False),
        (CommittedOffset(offset=7, lag=0), False),
    ],
)
def test_offsets_that_contradict_themselves_are_found(
    told: CommittedOffset, *, is_right: bool
) -> None:
    """What is told of a partition is there as a whole or not at all, and the lag follows."""

    async def fetch(w: Wanderer) -> None:
        await wanderer_offsets.fetch_offsets(w, ("a", "b", "c"))

    assert bool(told_by(fetch, told)) is not is_right


def test_data_that_ends_before_it_begins_is_found() -> None:
    """No start lies behind its end."""
    right, wrong = (
        Watermarks(start_offset=2, end_offset=2),
        Watermarks(start_offset=3, end_offset=2),
    )
    assert told_by(wanderer_offsets.report_data, right) == []
    assert told_by(wanderer_offsets.report_data, wrong)


@pytest.mark.parametrize(
    ("told", "is_right"),
    [
        (FoundOffset(offset=2, start_offset=2, end_offset=5), True),
        (FoundOffset(offset=5, start_offset=2, end_offset=5, written_by=1), True),
        (FoundOffset(offset=1, start_offset=2, end_offset=5), False),
        (FoundOffset(offset=6, start_offset=2, end_offset=5, written_by=1), False),
        (FoundOffset(offset=5, start_offset=2, end_offset=5), False),
        (FoundOffset(offset=2, start_offset=2, end_offset=5, written_by=1), False),
        (FoundOffset(offset=5, start_offset=2, end_offset=5, written_by=1 << 62), False),
    ],
)
def test_found_offsets_that_cannot_be_are_found(told: FoundOffset, *, is_right: bool) -> None:
    """An offset for a time is where data is, and what lies before it was written before."""
    assert bool(told_by(wanderer_offsets.report_data, told)) is not is_right


def failures_of(error: Exception) -> list[str]:
    """Return what fails where a call ends in an error."""

    async def call() -> None:
        raise error

    told: list[str] = []
    access = Access(["10.0.0.1:1"], "")
    wanderer = Wanderer("wander0", 1, access, told.append, Counter(), is_root=False)
    asyncio.run(wanderer.tried(call(), None))
    return told


def broken(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """Return the error of a call that failed."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


def test_faults_of_the_cluster_are_failures() -> None:
    """An internal error, an unknown one, lost data and a broken protocol fail a run."""
    assert failures_of(Refusal(Reason.REASON_INTERNAL, "a bug"))
    assert failures_of(Refusal(Reason.REASON_REPLICA_DIVERGED, "another end"))
    assert failures_of(broken(grpc.StatusCode.UNKNOWN, "Unexpected <class 'KeyError'>"))
    assert failures_of(ProtocolError("no answer"))


def test_what_callers_have_to_live_with_is_no_failure() -> None:
    """Refusals, deadlines, damage that is told, and the library's words for a late write pass."""
    assert failures_of(Refusal(Reason.REASON_STREAM_NOT_FOUND, "none")) == []
    assert failures_of(Refusal(Reason.REASON_SNAPSHOT_DAMAGED, "rotten")) == []
    assert failures_of(broken(grpc.StatusCode.UNAVAILABLE, "gone")) == []
    assert failures_of(broken(grpc.StatusCode.INTERNAL, "Internal error from Core")) == []
    assert failures_of(TimedOut("too late")) == []
