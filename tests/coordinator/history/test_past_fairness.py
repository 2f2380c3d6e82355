"""Long builds of several users: each comes to its end, and nobody keeps the others waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final

import pytest

from coordinator.history import turns
from coordinator.history.builder import WalkedLog
from coordinator.history.messages import ApplyEntries, BeginState, SoughtEntity, WalkEntries
from coordinator.history.order import TurnOrder
from coordinator.mux.stage import Stage
from tests.coordinator.history.past_trial import OTHER, USER, PastTrial
from tests.past.past_histories import history, sealed
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1.users_pb2 import User
from viewstamp.errors import Refusal
from viewstamp.format.prepare import SealedPrepare

THIRD: Final = 9
# Pieces of the log, each of a second, that a caller waits; and how often it asks.
PATIENCE_S: Final = 4
ATTEMPTS_MAX: Final = 12
EVERYBODY: Final = SoughtEntity(int(Stage.USERS), User.DESCRIPTOR.full_name, frozenset(range(6)))
STEPS_MAX: Final = 2_000


@pytest.fixture(scope="module")
def entries() -> list[SealedPrepare]:
    """A log whose last states take longer than a caller waits."""
    return sealed(history(Random(1), 7))


def messages(trial: PastTrial, kind: type) -> int:
    """Return how many messages of a kind processes got."""
    return sum(isinstance(message, kind) for link in trial.links for message in link.asked)


def is_over(trial: PastTrial, asked: asyncio.Future[int], ends_s: float) -> bool:
    """Return whether a question is answered, or its deadline has come."""
    return asked.done() or trial.clock_s >= ends_s


async def attempts(trial: PastTrial, revision: int, user_id: int) -> int:
    """Ask for a revision until it is answered, each time with a deadline; return how often."""
    for attempt in range(1, ATTEMPTS_MAX + 1):
        asked, ends_s = trial.ask(revision, user_id), trial.clock_s + PATIENCE_S
        await steps_until(partial(is_over, trial, asked, ends_s))
        if asked.done():
            assert asked.result() == revision
            return attempt
        asked.cancel()
        await asyncio.sleep(0)
    raise AssertionError(f"revision {revision} had no answer in {ATTEMPTS_MAX} attempts")


async def test_two_long_builds_both_end(entries: list[SealedPrepare]) -> None:
    """Two users who ask again at their deadlines do not destroy each other's states for ever.

    Each state is begun once, because its turn lasts while its caller asks again.
    """
    trial = PastTrial(entries)
    early, late = entries[-2].last_revision, entries[-1].last_revision
    counts = await asyncio.wait_for(
        asyncio.gather(attempts(trial, late, USER), attempts(trial, early, OTHER)), 20
    )
    assert all(count > 1 for count in counts), "each build takes longer than a caller waits"
    assert messages(trial, BeginState) == 2
    assert messages(trial, ApplyEntries) == 2 * len(entries) - 1


async def test_whoever_waits_longest_comes_next(entries: list[SealedPrepare]) -> None:
    """Three users of long builds are answered once each before one of them is answered again."""
    trial = PastTrial(entries)
    order: list[int] = []

    async def ask_twice(user_id: int, revision: int) -> None:
        for _ in range(2):
            await attempts(trial, revision, user_id)
            order.append(user_id)

    asked = [
        ask_twice(user_id, entries[-number].last_revision)
        for number, user_id in enumerate((USER, OTHER, THIRD), start=1)
    ]
    await asyncio.wait_for(asyncio.gather(*asked), 20)
    assert set(order[:3]) == {USER, OTHER, THIRD}
    assert set(order[3:]) == {USER, OTHER, THIRD}


async def pieces_until(trial: PastTrial, count: int) -> None:
    """Wait until so many pieces of the log were applied."""
    await trial.is_launched.wait()
    await steps_until(lambda: messages(trial, ApplyEntries) >= count)


async def steps_until(is_so: Any) -> None:
    """Let the loop go on until something is so."""
    for _ in range(STEPS_MAX):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it does not come")


async def test_a_caller_that_is_gone_delays_nobody_for_long(
    entries: list[SealedPrepare],
) -> None:
    """A turn waits for its caller no longer than was worked for it, and then the next one begins.

    The caller that left at once is not waited for.
    """
    trial = PastTrial(entries)
    late = trial.ask(entries[-1].last_revision)
    early = trial.ask(2, OTHER)
    await pieces_until(trial, 2)
    late.cancel()
    assert await early == 2
    # Three pieces with the one that was under way, three of patience, and that of the other state.
    assert messages(trial, ApplyEntries) <= 7
    assert trial.tally.builds["given_up"] == 1
    trial = PastTrial(entries)
    trial.ask(entries[-1].last_revision).cancel()
    assert await trial.ask(2, OTHER) == 2
    assert messages(trial, BeginState) == 1


async def test_a_turn_ends_while_others_wait(
    entries: list[SealedPrepare], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The longest build gives its turn away, keeps its place in the queue, and is answered."""
    monkeypatch.setattr(turns, "PAST_TURN_MS_MAX", 3_000)
    trial = PastTrial(entries)
    late, early = trial.ask(entries[-1].last_revision), trial.ask(2, OTHER)
    assert await early == 2
    assert messages(trial, ApplyEntries) < len(entries)
    assert not late.done()
    # Nobody waits any more, so the turn lasts until it is over.
    assert await late == entries[-1].last_revision


async def test_a_built_state_waits_for_its_caller(entries: list[SealedPrepare]) -> None:
    """A state whose caller is away when it is there is kept for the next attempt."""
    trial = PastTrial(entries)
    last = entries[-1].last_revision
    late, early = trial.ask(last), trial.ask(2, OTHER)
    await pieces_until(trial, len(entries) - 1)
    late.cancel()
    await steps_until(lambda: trial.builder.place and trial.builder.place.revision == last)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not early.done()
    assert await trial.ask(last) == last
    assert await early == 2
    assert messages(trial, BeginState) == 2


async def test_a_caller_with_another_wish_is_not_waited_for(entries: list[SealedPrepare]) -> None:
    """Whoever left a build and asks for something else has given it up."""
    trial = PastTrial(entries)
    late = trial.ask(entries[-1].last_revision)
    early = trial.ask(3, OTHER)
    await pieces_until(trial, 4)
    late.cancel()
    await asyncio.sleep(0)
    other = trial.ask(2)
    assert await early == 3
    # Four pieces, two until the other wish is seen, and that of the other state.
    assert messages(trial, ApplyEntries) <= 7
    assert await other == 2
    assert trial.tally.builds["given_up"] == 1


async def test_two_programs_of_one_user_both_end(entries: list[SealedPrepare]) -> None:
    """What a user's other program waited for before is no other wish of the one that is away."""
    trial = PastTrial(entries)
    last = entries[-1].last_revision
    late, early = trial.ask(last), trial.ask(2)
    await pieces_until(trial, len(entries) - 1)
    late.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not early.done()
    assert await trial.ask(last) == last
    assert await early == 2
    assert messages(trial, BeginState) == 2


async def pages(trial: PastTrial, room: int) -> list[int]:
    """Return the revisions that all pages of a walk have found."""
    found: list[int] = []
    sought, from_revision = EVERYBODY, 1
    while from_revision:
        page: WalkedLog = await trial.walk(sought, from_revision, room, b"everybody")
        found += [each.change.revision for each in page.found]
        sought, from_revision = replace(sought, ids=page.ids), page.next_revision
    return found


async def test_a_walk_of_many_pages_is_not_begun_again(entries: list[SealedPrepare]) -> None:
    """The state stays between the pages of a walk, although somebody else waits."""
    alone = await pages(PastTrial(entries), 1)
    assert len(alone) > 3
    trial = PastTrial(entries)

    async def read() -> int:
        await pieces_of_walk(trial)
        found: int = await trial.ask(2, OTHER)
        return found

    both: Awaitable[tuple[list[int], int]] = asyncio.gather(pages(trial, 1), read())
    walked, read_at = await asyncio.wait_for(both, 20)
    assert (walked, read_at) == (alone, 2)
    assert messages(trial, BeginState) == 2


async def test_a_walk_whose_beginning_takes_long(entries: list[SealedPrepare]) -> None:
    """Whoever is not answered before a walk has come to its beginning finds the state there."""
    trial = PastTrial(entries)
    last = entries[-1].last_revision
    walked = trial.walk(EVERYBODY, last, goal=b"everybody")
    early = trial.ask(2, OTHER)
    await pieces_of_walk(trial)
    walked.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not early.done()
    await trial.walk(EVERYBODY, last, goal=b"everybody")
    assert await early == 2
    assert messages(trial, BeginState) == 2
    assert messages(trial, WalkEntries) == len(entries)


async def pieces_of_walk(trial: PastTrial) -> None:
    """Wait until a walk has begun."""
    await trial.is_launched.wait()
    await steps_until(lambda: trial.clock_s >= 1)


async def test_builds_and_questions_are_counted(
    entries: list[SealedPrepare], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each build counts with its time and what it replayed, and each question with its outcome."""
    trial = PastTrial(entries)
    last = entries[-1].last_revision
    asked = trial.ask(last)
    await trial.is_launched.wait()
    assert (trial.tally.waiting, trial.tally.is_building) == (1, True)
    await asked
    await trial.ask(last)
    assert trial.tally.builds == {"ok": 1}, "the second question found the state there"
    assert (trial.tally.built_s, trial.tally.replayed_revisions) == (len(entries), last)
    await trial.walk(EVERYBODY)
    assert trial.tally.builds == {"ok": 2}
    trial.live[entries[-1].op] = bytes(16)
    with pytest.raises(Refusal):
        await trial.ask(last)
    monkeypatch.setattr(turns, "PAST_READS_WAITING_PER_USER_MAX", 1)
    given_up = trial.ask(2)
    with pytest.raises(Refusal) as refused:
        trial.ask(2)
    assert refused.value.reason == Reason.REASON_OVERLOADED
    given_up.cancel()
    await asyncio.sleep(0)
    assert trial.tally.questions == {"ok": 3, "INTERNAL": 1, "OVERLOADED": 1, "given_up": 1}
    assert (trial.tally.waiting, trial.tally.is_building) == (0, False)


def test_the_order_of_users() -> None:
    """Who waits longest comes first, also after a short absence; a long one is forgotten."""
    order = TurnOrder(absence_s_max=10, absent_max=2)
    order.asks(1, 0)
    order.asks(2, 1)
    assert order.first([2, 1]) == 1
    order.leaves(1, 2)
    order.asks(3, 3)
    order.asks(1, 12)  # again within 10 s
    assert order.first([3, 2, 1]) == 1
    order.had_turn(1)
    assert order.first([3, 2, 1]) == 2
    order.leaves(2, 20)
    order.asks(2, 31)  # too late
    assert order.first([1, 2, 3]) == 3
    assert order.first([1, 2]) == 1
    for user_id in (1, 2, 3):
        order.leaves(user_id, 32)
    # Of three who are away, the first to leave is forgotten.
    order.asks(1, 33)
    order.asks(3, 33)
    assert order.first([1, 3]) == 3


def test_nothing_is_kept_of_users_who_are_forgotten() -> None:
    """A turn that ends when its user is forgotten already leaves no place behind."""
    order = TurnOrder(absence_s_max=10, absent_max=1)
    for user_id in (1, 2):
        order.asks(user_id, 0)
        order.leaves(user_id, 1)
    order.had_turn(1)
    order.asks(3, 2)
    order.asks(1, 3)
    assert order.first([1, 3]) == 3
