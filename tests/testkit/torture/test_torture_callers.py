"""Callers record what they are told, and notice answers that nobody should get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf.message import Message

from testkit.oracles.transactions import TransactionOutcome
from testkit.torture.keys import LIST, STREAM, TOPIC, USER, KeyPlace, read_of, seen_in, write_of
from testkit.torture.recorder import NS_PER_MS, Recorder
from testkit.torture.writers import TransactionWriter
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client.errors import OutcomeUnknown, TimedOut
from viewstamp.errors import Refusal

PLACES = [
    KeyPlace(USER, (1,)),
    KeyPlace(USER, (2,)),
    KeyPlace(STREAM, (3,)),
    KeyPlace(TOPIC, (3, 4)),
    KeyPlace(LIST, (3, 5)),
]
CALLS = 200


class FakeClient:
    """Takes every write, or fails each in one way; stops the writer after some calls."""

    def __init__(self, error: Exception | None, *, fails_the_hopeless: bool = True) -> None:
        self.writer: Any = None
        self.calls = 0
        self._error = error
        self._fails_the_hopeless = fails_the_hopeless

    async def transact(self, requests: Sequence[Message]) -> list[Any]:
        """Answer a transaction."""
        is_hopeless = isinstance(requests[-1], users_pb2.UpdateUserRequest) and (
            requests[-1].username == "nobody"
        )
        if is_hopeless and self._fails_the_hopeless and self._error is None:
            self._count()
            raise Refusal(Reason.REASON_USER_NOT_FOUND, "nobody")
        return [self._answer() for _ in requests]

    async def call(self, request: Message) -> Any:
        """Answer a command, or a read with an entity of no name."""
        if isinstance(request, users_pb2.GetUserRequest):
            return users_pb2.GetUserResponse(header=self._header())
        if isinstance(request, streams_pb2.GetStreamRequest):
            return streams_pb2.GetStreamResponse(header=self._header())
        if isinstance(request, streams_pb2.GetTopicRequest):
            return streams_pb2.GetTopicResponse(header=self._header())
        if isinstance(request, groups_pb2.ListConsumerGroupsRequest):
            return groups_pb2.ListConsumerGroupsResponse(header=self._header())
        return self._answer()

    def _answer(self) -> Any:
        header = self._header()
        if self._error is not None:
            raise self._error
        return users_pb2.UpdateUserResponse(header=header)

    def _header(self) -> common_pb2.ResponseHeader:
        self._count()
        return common_pb2.ResponseHeader(revision=self.calls)

    def _count(self) -> None:
        self.calls += 1
        self.writer.is_over = self.calls >= CALLS


async def wrote(client: FakeClient) -> Recorder:
    """Let a writer call a client, and return what it recorded."""
    recorder = Recorder()
    client.writer = TransactionWriter("writer", client, PLACES, recorder, "seed")  # type: ignore[arg-type]
    await client.writer.run()
    return recorder


UNKNOWN = OutcomeUnknown("no answer", session_id=1, request_number=2)
EXISTS = Refusal(Reason.REASON_GROUP_EXISTS, "there is such a group")


async def test_answers_are_recorded() -> None:
    """Writes that were answered are committed at their revision, failing ones are aborted."""
    recorder = await wrote(FakeClient(None))
    writes = [each for each in recorder.history if each.writes]
    assert {each.outcome for each in writes} == {
        TransactionOutcome.COMMITTED,
        TransactionOutcome.ABORTED,
    }
    committed = [each for each in writes if each.outcome is TransactionOutcome.COMMITTED]
    assert [each.revision for each in committed if each.revision is None] == []
    assert len({write for each in writes for write in each.writes}) == sum(
        len(each.writes) for each in writes
    )
    assert recorder.surprises == []


@pytest.mark.parametrize(
    ("error", "outcome", "is_surprise"),
    [
        (UNKNOWN, TransactionOutcome.UNKNOWN, False),
        (TimedOut("too late"), TransactionOutcome.ABORTED, False),
        (EXISTS, TransactionOutcome.ABORTED, True),
        (EXISTS.with_details(outcome="unknown"), TransactionOutcome.UNKNOWN, False),
        (Refusal(Reason.REASON_OVERLOADED, "later"), TransactionOutcome.ABORTED, False),
        (Refusal(Reason.REASON_INTERNAL, "a defect"), TransactionOutcome.ABORTED, True),
    ],
    ids=lambda each: getattr(each, "name", type(each).__name__),
)
async def test_errors_are_recorded(
    error: Exception, outcome: TransactionOutcome, is_surprise: bool
) -> None:
    """An error says whether nothing happened or nobody knows; new names are never taken."""
    recorder = await wrote(FakeClient(error))
    assert {each.outcome for each in recorder.history if each.writes} == {outcome}
    assert bool(recorder.surprises) is is_surprise


async def test_a_transaction_that_cannot_succeed_and_does_is_a_surprise() -> None:
    """A cluster that acknowledges a transaction with a failing part is found at once."""
    recorder = await wrote(FakeClient(None, fails_the_hopeless=False))
    assert recorder.surprises != []
    assert all("cannot have succeeded" in each for each in recorder.surprises)


def test_every_place_is_written_and_read() -> None:
    """Requests of each kind name the place, and an answer shows version and revision."""
    for place in PLACES:
        assert write_of(place, "a version").ByteSize() > read_of(place).ByteSize() // 2
    assert write_of(PLACES[0], "v", 7).expected_revision == 7  # type: ignore[attr-defined]
    user = users_pb2.GetUserResponse()
    user.user.username, user.user.modified_revision = "ann", 8
    groups = groups_pb2.ListConsumerGroupsResponse()
    groups.groups.add(name="one", created_revision=9)
    reads, lists = seen_in([(PLACES[0], user), (PLACES[4], groups)])
    assert reads == (("user 1", "ann", 8),)
    assert lists == (("groups of topic 3/5", (("one", 9),)),)


async def test_silences_are_measured() -> None:
    """The gaps between answers that are long enough are told, in milliseconds."""
    recorder = Recorder()
    client = FakeClient(None)
    client.writer = TransactionWriter("writer", client, PLACES, recorder, "seed")  # type: ignore[arg-type]
    await client.writer.run()
    assert recorder.silences_ms(10_000) == []
    first = recorder.history[0]
    assert first.returned_at is not None
    assert len(recorder.silences_ms(0)) == len(recorder.history) - 1
    assert NS_PER_MS == 10**6
