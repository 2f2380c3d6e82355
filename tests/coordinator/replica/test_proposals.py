"""Proposals: one of each at a time, when due, and again when they were not sequenced."""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet

import pytest

from coordinator.gateway.routes import Routes
from coordinator.replica import proposals as module
from coordinator.replica.batcher import AnsweredSpan, LooseCommand, Reply
from coordinator.replica.proposals import Proposals
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2
from viewstamp.api.domain.v1 import domain_service_pb2 as domain
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2
from viewstamp.errors import Refusal
from viewstamp.limits import SYSTEM_USER_ID
from viewstamp.routing import methods_of_file

ASSIGN, SWEEP = 390, 392
DONE = Reply(1, 1, 1, (AnsweredSpan(b"\x0a\x00", ()),))


class Sequencer:
    """Takes commands, or refuses them."""

    def __init__(self) -> None:
        """Refuse none."""
        self.refusals: list[Refusal] = []
        self.taken: list[LooseCommand] = []

    def submit(self, waiting: LooseCommand) -> None:
        """Take a command, unless a refusal is planned."""
        if self.refusals:
            raise self.refusals.pop()
        self.taken.append(waiting)


class Rules:
    """Codes that the level in force allows, and codes of which one is pending at a time."""

    def __init__(self, allowed: AbstractSet[int] = frozenset({ASSIGN, SWEEP})) -> None:
        """Allow these."""
        self._allowed = allowed

    def may_enter(self, code: int) -> bool:
        """Return whether a code is allowed."""
        return code in self._allowed

    def is_one_at_a_time(self, code: int) -> bool:
        """Return whether the code is that of Sweep."""
        return code == SWEEP


class Sweeps:
    """A machine with chores: each applied Sweep asks for the next, while any chores are left."""

    def __init__(self, chores: int) -> None:
        """Have so many chores, and let a new primary ask for proposals."""
        self.sequencer = Sequencer()
        self.proposals = Proposals(self.sequencer, Rules())
        self.proposals.activate()
        self.chores = chores
        self.revision = 100
        self.applied: list[bytes] = []

    def told_anew(self) -> None:
        """Answer the question for proposals, as a service that connects does."""
        if self.chores:
            self.proposals.add(domain.Proposal(code=SWEEP, request=b"anew"))

    async def round(
        self, *, told_again: bool = False, asked_before: bool = False, asked: bool = False
    ) -> int:
        """Apply the commands that were sent; return how many Sweeps they were.

        The answer that asked for them may be delivered again. The machine may be asked for
        proposals before it applies the commands, and before they are settled.
        """
        await _turns(self.sequencer, 1)
        taken, self.sequencer.taken = self.sequencer.taken, []
        if told_again:
            self.proposals.add(domain.Proposal(code=SWEEP, request=taken[0].item))
        if asked_before:
            self.told_anew()
        for command in taken:
            self._apply(command)
        if asked:
            self.told_anew()
        for command in taken:
            command.future.set_result(DONE)
        await asyncio.sleep(0)
        return len(taken)

    def _apply(self, command: LooseCommand) -> None:
        self.applied.append(command.item)
        self.revision += 1
        self.chores = max(0, self.chores - 1)
        if self.chores:
            self.proposals.add(domain.Proposal(code=SWEEP, request=b"%d" % self.revision))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_DELAY_MS", 1)


async def _turns(sequencer: Sequencer, count: int) -> None:
    for _ in range(1_000):
        await asyncio.sleep(0.001)
        if len(sequencer.taken) >= count:
            return
    raise AssertionError(f"{len(sequencer.taken)} of {count} were proposed")


async def test_the_same_proposal_is_pending_once() -> None:
    """A repeat of a waiting proposal is dropped; a settled one can be proposed again."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer, Rules())
    proposals.activate()
    proposal = domain.Proposal(code=ASSIGN, request=b"g")
    proposals.add(proposal)
    proposals.add(proposal)
    await _turns(sequencer, 1)
    (command,) = sequencer.taken
    assert (command.code, command.item, command.user_id) == (ASSIGN, b"g", SYSTEM_USER_ID)
    command.future.set_result(DONE)
    await asyncio.sleep(0)
    assert len(proposals) == 0
    proposals.add(proposal)
    await _turns(sequencer, 2)


async def test_what_is_due_together_is_sent_in_portions() -> None:
    """The loop turns while the proposals that waited for a new primary are sent, and all are
    sent."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer, Rules())
    proposals.activate()
    count = 2 * module.SENT_TOGETHER_MAX + 1
    for number in range(count):
        proposals.propose(ASSIGN, b"%d" % number, due=number % 3)
    sizes = set()
    while len(sequencer.taken) < count:
        before = len(sequencer.taken)
        await asyncio.sleep(0)
        sizes.add(len(sequencer.taken) - before)
    assert max(sizes) <= module.SENT_TOGETHER_MAX
    assert {command.item for command in sequencer.taken} == {b"%d" % n for n in range(count)}


async def test_what_was_not_sequenced_is_proposed_again() -> None:
    """A proposal that is refused, at once or later, is tried again until it is decided."""
    sequencer = Sequencer()
    sequencer.refusals = [Refusal(Reason.REASON_NO_SPACE, "full")] * 2
    proposals = Proposals(sequencer, Rules())
    proposals.activate()
    proposals.propose(ASSIGN, b"g", 0)
    await _turns(sequencer, 1)
    sequencer.taken[0].future.set_exception(Refusal(Reason.REASON_VIEW_CHANGE, "moved"))
    await _turns(sequencer, 2)
    sequencer.taken[1].future.set_result(DONE)
    await asyncio.sleep(0)
    assert len(proposals) == 0


async def test_nothing_is_proposed_before_its_time() -> None:
    """Proposals wait for their log time, the earliest first."""
    sequencer, now = Sequencer(), [1_000_000]
    proposals = Proposals(sequencer, Rules(), lambda: now[0])
    proposals.activate()
    for name, due in ((b"late", 9_000_000), (b"soon", 1_002_000), (b"now", 0)):
        proposals.propose(ASSIGN, name, due)
    await _turns(sequencer, 1)
    assert [command.item for command in sequencer.taken] == [b"now"]
    now[0] = 1_002_000
    await _turns(sequencer, 2)
    assert [command.item for command in sequencer.taken] == [b"now", b"soon"]
    assert len(proposals) == 3


async def test_a_replay_proposes_nothing() -> None:
    """Before the replica serves, proposals of machines are history."""
    proposals = Proposals(Sequencer(), Rules())
    proposals.add(domain.Proposal(code=ASSIGN, request=b"g"))
    assert len(proposals) == 0


async def test_who_is_no_longer_the_primary_proposes_nothing() -> None:
    """A former primary forgets its proposals, retries none, and begins anew when it leads again."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer, Rules(), lambda: 1_000_000)
    proposals.activate()
    proposals.propose(ASSIGN, b"on its way", 0)
    await _turns(sequencer, 1)
    proposals.propose(ASSIGN, b"waits", 9_000_000)
    proposals.deactivate()
    sequencer.taken[0].future.set_exception(Refusal(Reason.REASON_VIEW_CHANGE, "moved"))
    proposals.propose(ASSIGN, b"of a backup", 0)
    await asyncio.sleep(0)
    assert len(proposals) == 0
    proposals.activate()
    proposals.propose(ASSIGN, b"waits", 0)
    await _turns(sequencer, 2)
    assert [command.item for command in sequencer.taken] == [b"on its way", b"waits"]


async def test_what_is_proposed_again_meanwhile_is_not_lost() -> None:
    """A proposal that is repeated while it is under way is sent again once it is settled."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer, Rules())
    proposals.activate()
    proposal = domain.Proposal(code=ASSIGN, request=b"g")
    proposals.add(proposal)
    await _turns(sequencer, 1)
    proposals.add(proposal)
    proposals.add(proposal)
    sequencer.taken[0].future.set_result(DONE)
    await _turns(sequencer, 2)
    sequencer.taken[1].future.set_result(DONE)
    await asyncio.sleep(0.005)
    assert (len(sequencer.taken), len(proposals)) == (2, 0)


async def test_nothing_above_the_feature_level_is_proposed() -> None:
    """A proposal above the feature level is dropped; once the level is raised it is sent."""
    sequencer, allowed = Sequencer(), {ASSIGN + 1}
    proposals = Proposals(sequencer, Rules(allowed))
    proposals.activate()
    proposals.propose(ASSIGN, b"g", 0)
    assert len(proposals) == 0
    allowed.add(ASSIGN)
    proposals.propose(ASSIGN, b"g", 0)
    await _turns(sequencer, 1)


async def test_what_an_earlier_term_sent_is_settled_beside_what_this_one_did() -> None:
    """A late answer to an earlier term's proposal ends none that is under way in this term."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer, Rules())
    proposals.activate()
    proposals.propose(ASSIGN, b"g", 0)
    await _turns(sequencer, 1)
    proposals.deactivate()
    proposals.activate()
    proposals.propose(ASSIGN, b"g", 0)
    await _turns(sequencer, 2)
    sequencer.taken[0].future.set_result(DONE)
    await asyncio.sleep(0)
    assert len(proposals) == 1
    proposals.propose(ASSIGN, b"g", 0)  # asked for again while it is sequenced
    sequencer.taken[1].future.set_result(DONE)
    await _turns(sequencer, 3)
    assert len(sequencer.taken) == 3


async def test_sweeps_form_one_chain_whenever_the_machine_is_asked_what_waits() -> None:
    """A service that connects while a Sweep waits, or is under way, begins no second chain."""
    sweeps = Sweeps(9)
    sweeps.told_anew()
    sweeps.told_anew()
    counts = [await sweeps.round()]
    sweeps.told_anew()  # while the next one waits
    counts.append(await sweeps.round(asked_before=True))
    counts.append(await sweeps.round(asked=True))
    counts.extend([await sweeps.round() for _ in range(6)])
    assert (counts, sweeps.chores, len(sweeps.proposals)) == ([1] * 9, 0, 0)
    # The step supersedes the earlier request for it, and names its place.
    assert sweeps.applied[:5] == [b"anew", b"101", b"102", b"anew", b"104"]


async def test_an_answer_that_is_told_twice_begins_no_second_chain() -> None:
    """When a stream ends while an answer is decoded, the next process gives that answer again."""
    sweeps = Sweeps(5)
    sweeps.told_anew()
    counts = [await sweeps.round(told_again=number < 3) for number in range(5)]
    assert (counts, sweeps.chores, len(sweeps.proposals)) == ([1] * 5, 0, 0)


async def test_the_next_step_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Sweep that was asked for before its predecessor was settled follows at once."""
    monkeypatch.setattr(module, "RETRY_DELAY_MS", 3_600_000)
    sweeps = Sweeps(3)
    sweeps.told_anew()
    assert [await sweeps.round() for _ in range(3)] == [1, 1, 1]


async def test_a_sweep_that_was_refused_comes_again_alone() -> None:
    """A refused Sweep does the work of those that were asked for meanwhile, and nothing is lost."""
    sweeps = Sweeps(2)
    sweeps.sequencer.refusals = [Refusal(Reason.REASON_NO_SPACE, "full")]
    sweeps.told_anew()
    await _turns(sweeps.sequencer, 1)
    (refused,) = sweeps.sequencer.taken
    sweeps.sequencer.taken.clear()
    sweeps.proposals.propose(SWEEP, b"102", 0)
    refused.future.set_exception(Refusal(Reason.REASON_OVERLOADED, "busy"))
    assert [await sweeps.round() for _ in range(2)] == [1, 1]
    assert (sweeps.chores, len(sweeps.proposals)) == (0, 0)


async def test_a_new_term_begins_one_chain() -> None:
    """An earlier term's Sweep may be settled late: only the chain of this term goes on."""
    sweeps = Sweeps(4)
    sweeps.told_anew()
    await _turns(sweeps.sequencer, 1)
    (old,) = sweeps.sequencer.taken
    sweeps.sequencer.taken.clear()
    sweeps.proposals.deactivate()
    sweeps.proposals.activate()
    sweeps.told_anew()
    sweeps.told_anew()
    counts = [await sweeps.round()]
    old.future.set_exception(Refusal(Reason.REASON_VIEW_CHANGE, "moved"))
    counts.extend([await sweeps.round() for _ in range(3)])
    assert (counts, sweeps.chores, len(sweeps.proposals)) == ([1] * 4, 0, 0)


def test_of_the_methods_that_are_served_sweep_is_one_at_a_time() -> None:
    """Its options make Sweep one at a time; methods about one group or one token have none."""
    routes = Routes()
    methods = [
        method
        for module in (consumer_groups_service_pb2, users_service_pb2)
        for method in methods_of_file(module.DESCRIPTOR)
        if method.internal
    ]
    for method in methods:
        routes.add(method)
    one_at_a_time = {method.name for method in methods if routes.is_one_at_a_time(method.code)}
    assert (one_at_a_time, len(methods) > 3) == ({"Sweep"}, True)
    assert not routes.is_one_at_a_time(999)
