"""Earlier states for many callers: one build at a time, in turns, bounded, and ended in time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from coordinator.history import builder, turns
from coordinator.history.builder import PastBuilder
from coordinator.history.messages import (
    ApplyEntries,
    AskState,
    BeginState,
    PastAnswer,
    SoughtEntity,
)
from coordinator.history.turns import PastQuestion
from coordinator.mux.stage import Stage
from coordinator.mux.types import Read, ReadAnswered, ReadSpan
from tests.coordinator.history.past_trial import OTHER, USER, PastTrial
from tests.past.past_histories import history, sealed
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1.users_pb2 import User
from viewstamp.api.users.v1.users_service_pb2 import WhoAmIRequest
from viewstamp.client.methods import method_of
from viewstamp.errors import Refusal
from viewstamp.format.prepare import SealedPrepare
from viewstamp.framing import frame
from viewstamp.limits import ROOT_USER_ID

ROOT = SoughtEntity(int(Stage.USERS), User.DESCRIPTOR.full_name, frozenset({0}))


@pytest.fixture(scope="module")
def entries() -> list[SealedPrepare]:
    """A log of all domains."""
    return sealed(history(Random(1), 6))


def begun(trial: PastTrial) -> int:
    """Return how often a state was begun anew."""
    return sum(isinstance(message, BeginState) for link in trial.links for message in link.asked)


async def test_states_go_on_and_begin_anew(entries: list[SealedPrepare]) -> None:
    """A later revision continues the state, an earlier one begins anew, and each is exact."""
    trial = PastTrial(entries)
    last = entries[-1].last_revision
    for revision, begins in ((3, 1), (last, 2 if trial_is_partial(entries, 3) else 1), (2, None)):
        assert await trial.ask(revision) == revision
        if begins is not None:
            assert begun(trial) == begins
    assert begun(trial) > 1
    assert len(trial.links) == 1


def trial_is_partial(entries: list[SealedPrepare], revision: int) -> bool:
    """Whether a revision lies in the midst of an entry."""
    return all(entry.last_revision != revision for entry in entries)


async def test_one_build_answers_all_who_want_it(entries: list[SealedPrepare]) -> None:
    """Those who ask for one revision are answered by one build, before the state moves on."""
    trial = PastTrial(entries)
    last = entries[-1].last_revision
    asked = [trial.ask(5), trial.ask(last, OTHER), trial.ask(5, OTHER), trial.ask(5)]
    assert await asyncio.gather(*asked) == [5, last, 5, 5]
    assert begun(trial) <= 2


async def test_users_take_turns(entries: list[SealedPrepare]) -> None:
    """A user with many questions lets another one in between."""
    trial = PastTrial(entries)
    order: list[int] = []
    asked = [(2, USER), (3, USER), (4, USER), (5, OTHER)]
    for revision, user_id in asked:
        future = trial.ask(revision, user_id)
        future.add_done_callback(lambda done: order.append(done.result()))
    await trial.ask(6, OTHER)
    assert order.index(5) == 1


async def test_too_many_questions_are_refused(
    entries: list[SealedPrepare], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user, and all together, may have so many questions; room comes back with the answers."""
    monkeypatch.setattr(turns, "PAST_READS_WAITING_PER_USER_MAX", 2)
    monkeypatch.setattr(turns, "PAST_READS_WAITING_MAX", 3)
    trial = PastTrial(entries)
    waiting = [trial.ask(2), trial.ask(3), trial.ask(2, OTHER)]
    for user_id, whose in ((USER, "of yours"), (9, "of all callers")):
        with pytest.raises(Refusal, match=whose) as refused:
            trial.ask(2, user_id)
        assert refused.value.reason == Reason.REASON_OVERLOADED
    await asyncio.gather(*waiting)
    assert await trial.ask(2) == 2


async def test_nobody_waits_any_more(entries: list[SealedPrepare]) -> None:
    """A build without a caller ends at the next piece, and the next one goes on from there."""
    trial = PastTrial(entries)
    last = entries[-1].last_revision
    asked = trial.ask(last)
    await trial.is_launched.wait()
    await trial.link.is_applying.wait()
    asked.cancel()
    for _ in entries:
        await asyncio.sleep(0)
    assert trial.builder.place is not None
    assert trial.builder.place.revision < last
    assert await trial.ask(last, OTHER) == last
    assert begun(trial) == 1
    applied = [m for m in trial.link.asked if isinstance(m, ApplyEntries)]
    assert len(applied) == len(entries)


async def test_a_process_that_dies_is_replaced(entries: list[SealedPrepare]) -> None:
    """Who waits for a process that dies is told to try again, and the next one has another."""
    trial = PastTrial(entries)
    await trial.ask(2)
    trial.link.is_dead = True
    with pytest.raises(Refusal, match="try again") as refused:
        await trial.ask(entries[-1].last_revision)
    assert refused.value.reason == Reason.REASON_OVERLOADED
    assert await trial.ask(2) == 2
    assert [link.is_ended for link in trial.links] == [True, False]


async def test_it_ends_when_nobody_asks(entries: list[SealedPrepare]) -> None:
    """The process ends some time after the last question, and the next question has another."""
    trial = PastTrial(entries, idle_ms=1)
    assert await trial.ask(2) == 2
    await asyncio.gather(*trial.tasks)
    assert trial.link.is_ended
    assert await trial.ask(3) == 3
    assert len(trial.links) == 2


async def test_the_end_of_the_coordinator(entries: list[SealedPrepare]) -> None:
    """When its work is cancelled, in the midst of a build, the process ends."""
    trial = PastTrial(entries)
    trial.ask(2)
    await trial.is_launched.wait()
    (task,) = trial.tasks
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert trial.link.is_ended


async def test_a_state_that_differs(entries: list[SealedPrepare]) -> None:
    """A state that is not what this replica came to is given to nobody."""
    trial = PastTrial(entries)
    last = entries[-1]
    await trial.ask(last.last_revision)
    place = trial.builder.place
    assert place is not None
    trial.live[last.op] = place.digest
    assert await trial.ask(last.last_revision) == last.last_revision
    trial.live[last.op] = bytes(16)
    with pytest.raises(Refusal, match="please report") as refused:
        await trial.ask(last.last_revision)
    assert refused.value.reason == Reason.REASON_INTERNAL


async def test_a_damaged_entry(entries: list[SealedPrepare]) -> None:
    """An entry that is damaged here is told, and waited for until a peer has sent it."""
    trial = PastTrial(entries)
    trial.damaged.append(3)
    last = entries[-1].last_revision
    assert await trial.ask(last) == last
    assert trial.faulty == [3]


async def test_a_log_that_is_gone(entries: list[SealedPrepare]) -> None:
    """What the log does not lead to any more is refused with the oldest revision."""
    trial = PastTrial(entries)
    await trial.ask(2)
    trial.first_op = len(entries)
    with pytest.raises(Refusal) as refused:
        await trial.ask(entries[-1].last_revision)
    assert refused.value.reason == Reason.REASON_REVISION_COMPACTED


async def test_a_defect_ends_the_state_alone(entries: list[SealedPrepare]) -> None:
    """Whatever fails here is told to its caller, and the next question is answered."""
    trial = PastTrial(entries)

    async def fail(builder: PastBuilder, _: object) -> None:
        raise OSError("a disk that cannot be read")

    with pytest.raises(Refusal, match="please report") as refused:
        await trial.turns.ask(PastQuestion(USER, 2, len(entries), fail))
    assert refused.value.reason == Reason.REASON_INTERNAL
    assert trial.link.is_ended
    assert await trial.ask(2) == 2


async def test_an_answer_that_fails_leaves_no_empty_state(entries: list[SealedPrepare]) -> None:
    """If one answer ends the process, others at that revision are answered by that state alone."""
    trial = PastTrial(entries)
    last = entries[-1].last_revision
    read = Read(1, (ReadSpan(method_of(WhoAmIRequest()).code, 1, frame(b"")),), ROOT_USER_ID, last)

    async def die(builder: PastBuilder, _: object) -> PastAnswer:
        trial.link.is_dead = True
        return await builder.ask(AskState(read))

    async def ask(builder: PastBuilder, _: object) -> PastAnswer:
        return await builder.ask(AskState(read))

    first, *others = [
        trial.turns.ask(PastQuestion(user_id, last, len(entries), how))
        for user_id, how in ((USER, die), (USER, ask), (OTHER, ask))
    ]
    with pytest.raises(Refusal, match="try again"):
        await first
    for answered in await asyncio.gather(*others):
        assert isinstance(answered, ReadAnswered)
        assert answered.revision == last


async def test_a_walk_that_nobody_waits_for(entries: list[SealedPrepare]) -> None:
    """A walk that waits for an entry, and whose caller is gone, lets the next question go on."""
    trial = PastTrial(entries)
    trial.is_torn = True
    walking = trial.walk(ROOT)
    await trial.is_launched.wait()
    walking.cancel()
    trial.is_torn = False
    assert await trial.ask(2) == 2
    walked = await trial.walk(ROOT)
    assert walked.found[0].change.revision == 1
    assert walked.next_revision == 0


async def test_a_walk_over_a_state_that_differs(entries: list[SealedPrepare]) -> None:
    """What a walk has found in a state that is not what this replica came to is given to nobody."""
    trial = PastTrial(entries)
    trial.live[entries[-1].op] = bytes(16)
    with pytest.raises(Refusal, match="please report") as refused:
        await trial.walk(ROOT)
    assert refused.value.reason == Reason.REASON_INTERNAL
    assert trial.link.is_ended


async def test_a_foreign_entry(entries: list[SealedPrepare]) -> None:
    """An entry that a new view has discarded is in no answer, and the next build has another."""
    trial = PastTrial(entries)
    second = entries[1]
    foreign = replace(second, header=replace(second.header, parent=bytes(16)))
    trial.entries = [entries[0], foreign, *entries[2:]]
    with pytest.raises(Refusal, match="follows another entry") as refused:
        await trial.ask(second.last_revision)
    assert refused.value.reason == Reason.REASON_SNAPSHOT_DAMAGED
    trial.entries = entries
    assert await trial.ask(second.last_revision) == second.last_revision


async def test_a_page_ends_at_its_bytes(
    entries: list[SealedPrepare], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All pieces of the log together fill a page, and the next page goes on behind it."""
    trial = PastTrial(entries)
    users = replace(ROOT, ids=frozenset(range(6)))
    whole = (await trial.walk(users, room=1000)).found
    assert len({each.change.revision for each in whole}) > 2
    monkeypatch.setattr(builder, "BLAME_PAGE_BYTES_MAX", 1)
    page = await trial.walk(users, room=1000)
    assert 0 < len(page.found) < len(whole)
    assert page.found == whole[: len(page.found)]
    assert page.found[-1].change.revision < page.next_revision <= whole[-1].change.revision
