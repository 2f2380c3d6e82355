"""Proposals: one of each at a time, when due, and again when they were not sequenced."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.replica import proposals as module
from coordinator.replica.batcher import LooseCommand, Reply, SpanReply
from coordinator.replica.proposals import Proposals
from viewstamp.api.domain.v1 import domain_service_pb2 as domain
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import SYSTEM_USER_ID

ASSIGN = 390
DONE = Reply(1, 1, 1, (SpanReply(b"\x0a\x00", ()),))


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
    """While it waits a repeat is dropped; once settled it can be proposed again."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer)
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
    """The loop turns while what waited for a new primary is sent, and all of it is."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer)
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
    """Refused at once or later, for lack of space or service, it is tried until it is decided."""
    sequencer = Sequencer()
    sequencer.refusals = [Refusal(Reason.REASON_NO_SPACE, "full")] * 2
    proposals = Proposals(sequencer)
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
    proposals = Proposals(sequencer, lambda: now[0])
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
    """Before the replica serves, what machines propose is history."""
    proposals = Proposals(Sequencer())
    proposals.add(domain.Proposal(code=ASSIGN, request=b"g"))
    assert len(proposals) == 0


async def test_who_is_no_longer_the_primary_proposes_nothing() -> None:
    """What waited is forgotten, what is refused is not tried again, and later all begins anew."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer, lambda: 1_000_000)
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
    """A machine that was asked too early says so before its answer is settled: it is asked anew."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer)
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
    """While the level is too low a proposal is dropped, not repeated; once it is raised it goes."""
    sequencer, allowed = Sequencer(), {ASSIGN + 1}
    proposals = Proposals(sequencer, may_enter=lambda code: code in allowed)
    proposals.activate()
    proposals.propose(ASSIGN, b"g", 0)
    assert len(proposals) == 0
    allowed.add(ASSIGN)
    proposals.propose(ASSIGN, b"g", 0)
    await _turns(sequencer, 1)


async def test_what_an_earlier_term_sent_is_settled_beside_what_this_one_did() -> None:
    """An answer that comes after this replica leads again ends nothing that is under way since."""
    sequencer = Sequencer()
    proposals = Proposals(sequencer)
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
