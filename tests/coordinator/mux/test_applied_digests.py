"""The chain of digests over what the log led to: what it covers, and what replicas tell of it.

That it does not depend on the order of answers, nor on a restart, is shown by the properties of
`test_cut_properties.py` and of the composite tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coordinator.mux.applied_digests import APPLIED_DIGESTS_KEPT, AppliedDigests
from coordinator.mux.mux import Mux
from coordinator.mux.types import (
    CommandOutcome,
    CommittedPrepare,
    Done,
    Effect,
    IndexedError,
    LoggedRequest,
    LoggedSpan,
    MuxEffect,
    Outcome,
    ResolveOutcome,
    SendBatch,
    Stage,
    StageReply,
)
from tests.coordinator.mux.fakes import FakeCodec
from tests.coordinator.mux.transcript import NAMES, ROUTES
from viewstamp import limits
from viewstamp.framing import frame_all

TWO: Final = frame_all([b"a", b"b"])
HOLE: Final = frame_all([b"a", b""])
HOLES: Final = frame_all([b"", b""])
LEVEL_1: Final = limits.FEATURE_LEVEL_BOUNDED - 1


def digests(*answers: bytes, cut_op: int = 0) -> AppliedDigests:
    """Return a chain behind a cut with the answers to the ops after it."""
    chain = AppliedDigests(cut_op)
    for answer in answers:
        chain.add(chain.last_op + 1, answer)
    return chain


@dataclass(frozen=True)
class Answers:
    """How the stages answer a command of a method, in the order of their batches."""

    method: str
    outcomes: tuple[tuple[Stage, Outcome], ...]

    def digest(self, level: int = limits.FEATURE_LEVEL_MAX) -> bytes:
        """Return the digest of the first op of a mux whose stages answer so."""
        mux = Mux(ROUTES, FakeCodec())
        span = LoggedSpan(NAMES[self.method], 2, TWO, 1, 1_000)
        request = LoggedRequest(limits.GATEWAY_SESSION_ID, 0, 0, (span,))
        effects: list[MuxEffect] = mux.commit(CommittedPrepare(1, 1, 1, 1, level, (request,)))
        for stage, outcome in self.outcomes:
            (batch,) = (each.batch for each in effects if isinstance(each, SendBatch))
            effects = mux.reply(StageReply(stage, batch.sequence, (outcome,) * len(batch.items)))
        found = mux.digests.at(1)
        assert found is not None, "the op is applied"
        return found


def created(
    results: bytes = TWO, errors: tuple[IndexedError, ...] = (), effects: tuple[Effect, ...] = ()
) -> Answers:
    """Return how the stage of streams answers two creations; a later stage gets the effects."""
    outcomes: list[tuple[Stage, Outcome]] = [
        (Stage.STREAMS, CommandOutcome(results, errors, effects))
    ]
    if effects:
        outcomes.append((Stage.CONSUMER_GROUPS, Done()))
    return Answers("create_stream", tuple(outcomes))


def joined(contexts: bytes = TWO) -> Answers:
    """Return how the stage of streams resolves two joins, which the groups then answer."""
    groups = (Stage.CONSUMER_GROUPS, CommandOutcome(TWO))
    return Answers("join", ((Stage.STREAMS, ResolveOutcome(contexts)), groups))


def emitted(payload: bytes, index: int = 0) -> tuple[Effect, ...]:
    """Return an effect of one of the commands."""
    return (Effect(index, (Stage.CONSUMER_GROUPS,), payload),)


PAIRS: Final = {
    "another result": (created(), created(frame_all([b"a", b"c"]))),
    "a result elsewhere": (created(HOLE), created(frame_all([b"", b"a"]))),
    "a refusal": (created(HOLE), created(HOLE, (IndexedError(1, b"E"),))),
    "a refusal of the other one": (
        created(HOLES, (IndexedError(0, b"E"),)),
        created(HOLES, (IndexedError(1, b"E"),)),
    ),
    "another reason": (
        created(HOLE, (IndexedError(1, b"E"),)),
        created(HOLE, (IndexedError(1, b"F"),)),
    ),
    "an effect": (created(), created(effects=emitted(b"x"))),
    "another effect": (created(effects=emitted(b"x")), created(effects=emitted(b"y"))),
    "an effect of the other one": (
        created(effects=emitted(b"x")),
        created(effects=emitted(b"x", 1)),
    ),
    "another context": (joined(), joined(frame_all([b"a", b"c"]))),
}


@pytest.mark.parametrize(("one", "other"), PAIRS.values(), ids=PAIRS)
def test_every_answer_of_a_stage_counts(one: Answers, other: Answers) -> None:
    """Two replicas whose stages answer one log differently have different digests."""
    assert one.digest() == one.digest()
    assert one.digest() != other.digest()


def test_words_of_level_1_do_not_count() -> None:
    """Builds word the details of a refusal at level 1; that it is a refusal, and where, counts."""
    first, again = (created(HOLE, (IndexedError(1, word),)) for word in (b"E", b"F"))
    assert first.digest(LEVEL_1) == again.digest(LEVEL_1)
    assert first.digest(LEVEL_1) != created(HOLE).digest(LEVEL_1)


def test_a_difference_lasts_until_the_next_cut() -> None:
    """Chains that once differed differ at each later op, and are one again from a cut on."""
    one, other = digests(b"a", b"b", b"c"), digests(b"a", b"x", b"c")
    assert [one.at(op) == other.at(op) for op in range(1, 4)] == [True, False, False]
    for chain in (one, other):
        chain.begin(4, 1)
        chain.add(5, b"d")
    assert [one.at(op) == other.at(op) for op in range(3, 6)] == [False, True, True]
    assert [one.generation_at(op) for op in (3, 4, 5)] == [0, 1, 1]


def test_a_chain_begins_at_the_cut_it_restarts_from() -> None:
    """A replica that starts behind a cut has the chain of one that came there by the log."""
    live = digests(b"a", b"b")
    live.begin(3, 1)
    live.add(4, b"d")
    assert digests(b"d", cut_op=3).at(4) == live.at(4)
    assert digests(b"d", cut_op=2).at(3) != live.at(3)


def test_old_digests_make_room() -> None:
    """The last digests are known, older ones, and those before the start, are not."""
    chain = AppliedDigests(5)
    assert [chain.at(op) is None for op in (4, 5, 6)] == [True, False, True]
    for _ in range(APPLIED_DIGESTS_KEPT):
        chain.add(chain.last_op + 1, b"")
    kept = range(chain.last_op - APPLIED_DIGESTS_KEPT + 1, chain.last_op + 1)
    assert chain.at(kept[0] - 1) is None
    assert len({chain.at(op) for op in kept} - {None}) == APPLIED_DIGESTS_KEPT


def told_by(news: list[int], last_op: int) -> set[int]:
    """Return the ops that a replica tells which applies so many ops between its reports."""
    chain, told, told_op = AppliedDigests(), set[int](), 0
    for new in news:
        for _ in range(min(new, last_op - chain.last_op)):
            chain.add(chain.last_op + 1, b"")
        told.add(chain.op_to_tell(told_op))
        told_op = chain.last_op
    return told


@given(
    bits=st.integers(0, 5),
    one=st.lists(st.integers(0, 32), min_size=8, max_size=40),
    other=st.lists(st.integers(0, 32), min_size=8, max_size=40),
)
@example(bits=3, one=[5] * 8, other=[3, 8] * 4)
def test_replicas_tell_common_ops(bits: int, one: list[int], other: list[int]) -> None:
    """Each multiple of a power of two that is not less than the new ops of any report is told."""
    step = 1 << bits
    one, other = ([min(new, step) for new in news] for news in (one, other))
    last_op = min(sum(one), sum(other))
    multiples = set(range(step, last_op + 1, step))
    assert multiples <= told_by(one, last_op)
    assert multiples <= told_by(other, last_op)


def test_the_end_of_a_chain_is_told() -> None:
    """The report after a cut tells the op before it, the next ones tell ops behind it."""
    chain = digests(*[b""] * 9)
    chain.begin(10, 1)
    chain.add(11, b"")
    assert chain.op_to_tell(3) == 9
    assert chain.op_to_tell(9) == 9
    assert chain.op_to_tell(10) == 11
    assert chain.op_to_tell(11) == 11
    assert digests(b"", cut_op=10).op_to_tell(10) == 11


def test_a_cut_may_be_repeated_right_behind_it() -> None:
    """The chain is then that of the later one alone."""
    chain, once = AppliedDigests(4, 1), AppliedDigests(4, 2)
    chain.begin(4, 2)
    for each in (chain, once):
        each.add(5, b"answer")
    assert chain.at(5) == once.at(5)
    assert (chain.generation_at(4), chain.generation_at(5)) == (2, 2)
