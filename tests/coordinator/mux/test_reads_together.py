"""How many reads may share a message to a stage."""

from __future__ import annotations

import pytest

from coordinator.mux.mux import Mux
from coordinator.mux.types import (
    Caller,
    QueryItem,
    QueryOutcome,
    Read,
    ReadAnswered,
    ReadPostponed,
    ReadsLeft,
    ReadSpan,
    ResolveItem,
    ResolveOutcome,
    SendBatch,
    Stage,
    StageReply,
)
from tests.coordinator.mux.fakes import FakeCodec
from tests.coordinator.mux.transcript import NAMES, ROUTES
from viewstamp import limits
from viewstamp.framing import frame_all

GET = NAMES["get_stream"]


def a_read(token: int, count: int = 2) -> Read:
    """Return a read of so many streams."""
    items = frame_all([b"name"] * count)
    return Read(token, (ReadSpan(GET, count, items),), 1, 0)


def sizes_of_batches(mux: Mux, *reads: Read) -> list[list[int]]:
    """Return the counts in each batch until every read is answered; check that all are answered."""
    effects, batches, answered = mux.read(*reads), [], []
    while effects:
        effect = effects.pop(0)
        if isinstance(effect, ReadAnswered):
            answered.append(effect.token)
        elif isinstance(effect, SendBatch):
            queries = [item for item in effect.batch.items if isinstance(item, QueryItem)]
            batches.append([query.count for query in queries])
            outcomes = tuple(QueryOutcome(query.query_id, query.items) for query in queries)
            effects += mux.reply(StageReply(Stage.STREAMS, 0, outcomes))
    assert answered == [read.token for read in reads]
    return batches


def test_reads_of_one_position_share_a_message() -> None:
    """Below the limits everything that waits travels together."""
    mux = Mux(ROUTES, FakeCodec())
    assert sizes_of_batches(mux, *map(a_read, range(1, 6))) == [[2, 2, 2, 2, 2]]


def test_a_read_of_several_callers_names_them_at_each_stage() -> None:
    """Who they are goes to the stage that authorizes, and to the owner; nobody reads for all."""
    callers = (Caller(1, 10, 7, 2), Caller(2, 20, 8, 1))
    items = frame_all([b"name"] * 3)
    span = ReadSpan(NAMES["get_group"], 3, items)
    mux = Mux(ROUTES, FakeCodec())
    (resolving,) = mux.read(Read(1, (span,), None, 0, callers=callers))
    assert isinstance(resolving, SendBatch)
    (item,) = resolving.batch.items
    assert isinstance(item, ResolveItem)
    assert item.callers == callers
    (asking,) = mux.reply(StageReply(Stage.STREAMS, 0, (ResolveOutcome(items),)))
    assert isinstance(asking, SendBatch)
    (query,) = asking.batch.items
    assert isinstance(query, QueryItem)
    assert (query.callers, query.user_id, query.session_id) == (callers, None, 0)


def test_a_message_holds_so_many_reads_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads beyond the limit of one message follow in the next, in order, and none is left out."""
    monkeypatch.setattr(limits, "READS_TOGETHER_MAX", 5)
    reads = [a_read(1, 2), a_read(2, 3), a_read(3, 1), a_read(4, 5), a_read(5, 1)]
    mux = Mux(ROUTES, FakeCodec())
    assert sizes_of_batches(mux, *reads) == [[2, 3], [1], [5], [1]]


def test_a_message_holds_so_many_bytes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few reads with large requests weigh as much as many small ones."""
    monkeypatch.setattr(limits, "READS_TOGETHER_BYTES_MAX", len(a_read(1).spans[0].items) * 2)
    mux = Mux(ROUTES, FakeCodec())
    assert sizes_of_batches(mux, *map(a_read, range(1, 6))) == [[2, 2], [2, 2], [2]]


def test_any_one_read_fits() -> None:
    """Any read that the gateway lets through fits into a message, so it never waits in vain."""
    assert limits.REQUEST_COMMANDS_MAX <= limits.READS_TOGETHER_MAX
    assert limits.MESSAGE_BYTES_MAX <= limits.READS_TOGETHER_BYTES_MAX
    mux = Mux(ROUTES, FakeCodec())
    alone = a_read(1, limits.READS_TOGETHER_MAX)
    assert sizes_of_batches(mux, alone) == [[limits.READS_TOGETHER_MAX]]


def test_a_read_without_a_turn_is_postponed_as_a_whole() -> None:
    """The spans of one read are postponed together; the others of its message are answered."""
    span = a_read(1).spans[0]
    both = Read(2, (span, span), 1, 0)
    mux = Mux(ROUTES, FakeCodec())
    (sent,) = mux.read(a_read(1), both, a_read(3))
    assert isinstance(sent, SendBatch)
    queries = [item for item in sent.batch.items if isinstance(item, QueryItem)]
    assert [query.continues for query in queries] == [False, False, True, False]
    outcomes = tuple(
        QueryOutcome(query.query_id, query.items, postponed=position in (1, 2))
        for position, query in enumerate(queries)
    )
    effects = mux.reply(StageReply(Stage.STREAMS, 0, outcomes))
    assert effects[0] == ReadPostponed(2)
    assert [each.token for each in effects[1:3] if isinstance(each, ReadAnswered)] == [1, 3]
    assert effects[3:] == [ReadsLeft((1, 2, 3))]


def test_abandoned_reads_leave_with_their_batch() -> None:
    """A stage computes exactly the reads that it was sent, whoever waits for them."""
    mux = Mux(ROUTES, FakeCodec())
    (sent,) = mux.read(a_read(1))
    assert isinstance(sent, SendBatch)
    assert [type(effect) for effect in mux.fail_read(1, b"")] == [ReadAnswered]
    (query,) = sent.batch.items
    assert isinstance(query, QueryItem)
    outcome = QueryOutcome(query.query_id, query.items)
    assert mux.reply(StageReply(Stage.STREAMS, 0, (outcome,))) == [ReadsLeft((1,))]
