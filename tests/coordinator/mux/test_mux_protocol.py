"""When a stage or the shell breaks the protocol, the mux says how and stops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from coordinator.mux import stage as stages
from coordinator.mux.catalog_types import BeginSnapshot, Restored
from coordinator.mux.mux import Mux
from coordinator.mux.types import (
    Applied,
    CommandOutcome,
    CommittedPrepare,
    CutItem,
    Done,
    Effect,
    IndexedError,
    LoggedRequest,
    LoggedSpan,
    MuxError,
    Outcome,
    QueryOutcome,
    Read,
    ReadSpan,
    RegisterSession,
    ResolveOutcome,
    SendBatch,
    Stage,
    StageReply,
)
from tests.coordinator.mux.fakes import FakeCodec
from tests.coordinator.mux.transcript import NAMES, ROUTES
from viewstamp import limits
from viewstamp.framing import frame_all
from viewstamp.limits import SECTION_SINCE_LEVEL

SYSTEM = limits.SYSTEM_USER_ID
TWO = frame_all([b"a", b"b"])


def _span(method: str, **changes: Any) -> LoggedSpan:
    """Return a span of two commands, with some fields changed."""
    return replace(LoggedSpan(NAMES[method], 2, TWO, 1, 1_000), **changes)


def _cut(count: int) -> LoggedSpan:
    """Return a span of cuts."""
    commands = (BeginSnapshot(1, 1, 0),) * count
    return LoggedSpan(405, count, b"", SYSTEM, 1_000, catalog_commands=commands)


def _prepare(*spans: LoggedSpan, op: int = 1, first_revision: int = 1) -> CommittedPrepare:
    """Return a prepare of one request."""
    requests = (LoggedRequest(0, 0, 0, spans),) if spans else ()
    return CommittedPrepare(op, 1, first_revision, 1, limits.FEATURE_LEVEL_MAX, requests)


def _mux() -> Mux:
    """Return a mux with the routes of the transcripts."""
    return Mux(ROUTES, FakeCodec())


def _refused(*indexes: int) -> tuple[IndexedError, ...]:
    """Return refusals of indexes."""
    return tuple(IndexedError(index, b"E") for index in indexes)


OUTCOMES: list[tuple[str, str, tuple[Outcome, ...], str]] = [
    ("too few", "create_stream", (), "answered 1 items by 0"),
    ("other kind", "create_stream", (Done(),), "CommandItem was answered by a Done"),
    ("index too high", "create_stream", (CommandOutcome(TWO, _refused(2)),), "lie below 2"),
    ("not ascending", "create_stream", (CommandOutcome(TWO, _refused(1, 1)),), "must ascend"),
    (
        "effect back to a stage that is not declared",
        "create_stream",
        (CommandOutcome(TWO, (), (Effect(0, (Stage.USERS,), b"x"),)),),
        "it may to later services and to what its emits_backward names",
    ),
    (
        "effect to itself",
        "create_stream",
        (CommandOutcome(TWO, (), (Effect(0, (Stage.STREAMS,), b"x"),)),),
        "it may to later services and to what its emits_backward names",
    ),
    (
        "effect to catalog",
        "create_stream",
        (CommandOutcome(TWO, (), (Effect(0, (Stage.CATALOG,), b"x"),)),),
        "it may to later services and to what its emits_backward names",
    ),
    (
        "effects out of order",
        "create_stream",
        (CommandOutcome(TWO, (), (Effect(1, (), b"x"), Effect(0, (), b"x"))),),
        "emits an effect at index 0 after 1",
    ),
    (
        "effect of a refused command",
        "create_stream",
        (CommandOutcome(TWO, _refused(0), (Effect(0, (), b"x"),)),),
        "not be refused",
    ),
]


@pytest.mark.parametrize(
    ("method", "outcomes", "message"), [row[1:] for row in OUTCOMES], ids=[r[0] for r in OUTCOMES]
)
def test_bad_outcomes(method: str, outcomes: tuple[Outcome, ...], message: str) -> None:
    """An answer that does not fit its batch is named, and never used."""
    mux = _mux()
    mux.commit(_prepare(_span(method)))
    with pytest.raises(MuxError, match=message):
        mux.reply(StageReply(Stage.STREAMS, 1, outcomes))


def test_an_index_is_refused_once() -> None:
    """A stage that refuses an item that was refused before has not looked at it."""
    mux = _mux()
    mux.commit(_prepare(_span("create_stream", refused=_refused(1))))
    with pytest.raises(MuxError, match="index 1 was refused twice"):
        mux.reply(StageReply(Stage.STREAMS, 1, (CommandOutcome(TWO, _refused(1)),)))


@pytest.mark.parametrize("sequence", [0, 2])
def test_answers_come_in_the_order_of_batches(sequence: int) -> None:
    """An answer to another batch than the oldest is refused."""
    mux = _mux()
    mux.commit(_prepare(_span("create_stream")))
    with pytest.raises(MuxError, match="the oldest is 1"):
        mux.reply(StageReply(Stage.STREAMS, sequence, (CommandOutcome(TWO),)))
    with pytest.raises(MuxError, match="the oldest is none"):
        mux.reply(StageReply(Stage.CATALOG, sequence, ()))


LOGGED = [
    ("no route", _span("create_stream", code=999), "code 999, which no service here applies"),
    ("a read", _span("get_user"), "code 150, which no service here applies"),
    ("refused out of range", _span("create_stream", refused=_refused(7)), "lie below 2"),
    ("session commands not decoded", _span("register"), "2 session commands, 0 decoded"),
    ("catalog commands not decoded", _span("fail_snapshot", user_id=SYSTEM), "2 catalog commands"),
    ("transactions not decoded", _span("transact"), "2 transactions, 0 decoded"),
    (
        "a part with two commands",
        _span("transact", count=1, parts=((_span("create_stream"),),)),
        "has count 2; it must be 1",
    ),
]


@pytest.mark.parametrize(
    ("span", "message"), [row[1:] for row in LOGGED], ids=[row[0] for row in LOGGED]
)
def test_bad_spans(span: LoggedSpan, message: str) -> None:
    """A logged span that the codec should have rejected is named."""
    with pytest.raises(MuxError, match=message):
        _mux().commit(_prepare(span))


READS = [
    ("a command", ReadSpan(999, 1, TWO), 1, "no stage answers reads of code 999"),
    ("a digest of nobody", ReadSpan(0, 1, b""), 1, "must name a stage"),
    ("sessions' digest", ReadSpan(0, 1, b"", Stage.SESSIONS), 1, "must name a stage"),
    ("nobody where a user is needed", ReadSpan(350, 1, TWO), None, "needs a user"),
]


@pytest.mark.parametrize(
    ("span", "user_id", "message"), [row[1:] for row in READS], ids=[row[0] for row in READS]
)
def test_bad_reads(span: ReadSpan, user_id: int | None, message: str) -> None:
    """A read that the gateway should have rejected is named."""
    with pytest.raises(MuxError, match=message):
        _mux().read(Read(1, (span,), user_id, 0))


QUERIES: list[tuple[tuple[Outcome, ...], str]] = [
    ((), "answered 1 reads by 0"),
    ((QueryOutcome(99),), "query 1 was answered by"),
    ((ResolveOutcome(b""),), "query 1 was answered by"),
]


@pytest.mark.parametrize(("outcomes", "message"), QUERIES)
def test_bad_answers_to_reads(outcomes: tuple[Outcome, ...], message: str) -> None:
    """An answer that does not fit the read is named."""
    mux = _mux()
    mux.read(Read(1, (ReadSpan(150, 1, TWO),), 1, 0))
    with pytest.raises(MuxError, match=message):
        mux.reply(StageReply(Stage.USERS, 0, outcomes))


def test_an_answer_is_deferred_once() -> None:
    """The announced answer must be the answer."""
    mux = _mux()
    mux.read(Read(1, (ReadSpan(150, 1, TWO),), 1, 0))
    mux.reply(StageReply(Stage.USERS, 0, (QueryOutcome(1, deferred=True),)))
    with pytest.raises(MuxError, match="deferred twice"):
        mux.deferred(QueryOutcome(1, deferred=True))


def test_bad_answers_around_savepoints() -> None:
    """Only Done answers a savepoint, its end, and the question for proposals."""
    part = LoggedSpan(NAMES["create_stream"], 1, frame_all([b"a"]), 1, 1_000)
    one = _span("transact", count=1, parts=((part,),))
    mux = _mux()
    mux.commit(_prepare(one))
    with pytest.raises(MuxError, match="answered a savepoint by"):
        mux.reply(StageReply(Stage.STREAMS, 1, (CommandOutcome(TWO), CommandOutcome(TWO))))
    mux = _mux()
    mux.commit(_prepare(one))
    mux.reply(StageReply(Stage.STREAMS, 1, (Done(), CommandOutcome(frame_all([b"a"])))))
    with pytest.raises(MuxError, match="answered the end of a savepoint by"):
        mux.reply(StageReply(Stage.STREAMS, 2, ()))
    mux = _mux()
    mux.poke_proposals()
    with pytest.raises(MuxError, match="answered a ProposalsItem by"):
        mux.reply(StageReply(Stage.USERS, 0, ()))


def test_prepares_come_in_order_and_not_too_many() -> None:
    """The mux demands ops without a gap, growing revisions, and few enough unapplied prepares."""
    mux = _mux()
    with pytest.raises(AssertionError, match="op 2 after 0"):
        mux.commit(_prepare(op=2))
    for op in range(1, limits.UNAPPLIED_PREPARES_MAX + 1):
        mux.commit(_prepare(_span("create_stream"), op=op, first_revision=2 * op))
    with pytest.raises(AssertionError, match="too many prepares not applied"):
        mux.commit(_prepare(op=limits.UNAPPLIED_PREPARES_MAX + 1, first_revision=99))
    assert mux.unapplied == limits.UNAPPLIED_PREPARES_MAX
    with pytest.raises(AssertionError, match="first revision 1 after"):
        other = _mux()
        other.commit(_prepare(_span("create_stream")))
        other.commit(_prepare(op=2, first_revision=1))


CUTS = [
    ("two commands", (LoggedRequest(0, 0, 0, (_cut(2),)),)),
    ("two spans", (LoggedRequest(0, 0, 0, (_cut(1), _span("create_stream"))),)),
    ("an acknowledgement", (LoggedRequest(0, 0, 0, (_cut(1),)), LoggedRequest(1, 0, 0, ()))),
    ("of a session", (LoggedRequest(1, 1, 0, (_cut(1),)),)),
]


@pytest.mark.parametrize("requests", [row[1] for row in CUTS], ids=[row[0] for row in CUTS])
def test_a_cut_is_alone(requests: tuple[LoggedRequest, ...]) -> None:
    """A cut is alone: anything beside it would be in the snapshot for some stages only."""
    with pytest.raises(MuxError, match="must be alone in its prepare"):
        _mux().commit(CommittedPrepare(1, 1, 1, 1, limits.FEATURE_LEVEL_MAX, requests))


def test_a_cut_tells_the_services_of_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that came at a later level than the cut's has no section: it is not frozen."""
    since = {**SECTION_SINCE_LEVEL, Stage.STREAMS: 2}
    monkeypatch.setattr(stages, "SECTION_SINCE_LEVEL", since)
    first = [Stage.USERS, Stage.CONSUMER_GROUPS]
    for level, told in ((1, first), (2, [Stage.USERS, Stage.STREAMS, Stage.CONSUMER_GROUPS])):
        prepare = replace(_prepare(_cut(1)), feature_level=level)
        sent = [each for each in _mux().commit(prepare) if isinstance(each, SendBatch)]
        assert [(each.batch.stage, each.batch.items) for each in sent] == [
            (stage, (CutItem(1),)) for stage in told
        ]


def test_a_cut_is_answered_by_done() -> None:
    """A service that answers anything else has not frozen."""
    mux = _mux()
    mux.commit(_prepare(_cut(1)))
    with pytest.raises(MuxError, match="USERS answered a cut by"):
        mux.reply(StageReply(Stage.USERS, 1, (CommandOutcome(TWO),)))


def test_a_malformed_cut_reaches_nobody() -> None:
    """A cut that does not parse is refused in its place, and the generation is not used."""
    mux = _mux()
    one = replace(_cut(1), refused=_refused(0), catalog_commands=(None,))
    (applied,) = mux.commit(_prepare(one))
    assert isinstance(applied, Applied) and applied.replies[0].spans[0].errors == _refused(0)
    assert mux.catalog.last_generation == 0


def test_routes_may_be_replaced() -> None:
    """A service that claims another method is sent it from then on."""
    mux = Mux({}, FakeCodec(), Restored(4, 9, limits.FEATURE_LEVEL_MAX, 0, (), ()))
    mux.set_routes(ROUTES)
    assert mux.commit(_prepare(_span("create_stream"), op=5, first_revision=10))
    assert (mux.op, mux.revision, list(mux.entities())) == (5, 11, [])


def test_admission_forgets_what_was_never_committed() -> None:
    """A number admitted in a lost view may be admitted again."""
    mux = _mux()
    nonce = bytes(limits.SESSION_NONCE_BYTES)
    span = LoggedSpan(1, 1, b"", 7, 1_000, session_commands=(RegisterSession(nonce),))
    mux.commit(_prepare(span))
    mux.admission.admit(1, 1)
    mux.admission.admit(1, 2)
    mux.admission.admit(0, 0)
    told = [type(mux.admission.lookup(1, number)).__name__ for number in (1, 2, 3, 4)]
    assert told == ["InFlight", "InFlight", "New", "Gap"]
    mux.admission.reset()
    told = [type(mux.admission.lookup(1, number)).__name__ for number in (1, 2)]
    assert told == ["New", "Gap"]
