"""Entries from other replicas, admitted by the room in the journal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import vsr
from coordinator.replica.append_backpressure import (
    FULL_QUESTION_MS,
    WAITING_MAX,
    AppendBackpressure,
)
from coordinator.replica.ports import JournalRoom
from coordinator.vsr.messages import (
    CommitMessage,
    CommittedMessage,
    PrepareMessage,
    RepairMessage,
    RequestCommittedMessage,
    RequestPrepareMessage,
    StartViewChangeMessage,
)
from viewstamp.limits import TICK_MS

CLUSTER = bytes(16)
HEAD = 5


def prepare(op: int) -> Any:
    """Return something that has an op."""
    return SimpleNamespace(op=op, checksum=b"%d" % op)


class FetchingReplica:
    """A replica whose log ends at HEAD, and grows with the admitted entries."""

    def __init__(self) -> None:
        self.marks: Any = SimpleNamespace(op=HEAD)
        self.room = JournalRoom.FREE
        self.taken: list[Any] = []
        self.reserved: set[int] = set()
        self.held: list[Any] = []
        self.now_ticks = 0
        self.entries = AppendBackpressure(
            self, self.step, self.may_use_reserve, lambda: self.room, lambda: self.now_ticks
        )

    def step(self, event: vsr.Event) -> None:
        """Remember the entry; the disk may be full after so many entries."""
        assert isinstance(event, vsr.Received)
        self.taken.append(event.message)

    def holds(self, op: int, checksum: bytes) -> bool:
        """Whether it was said so."""
        return (op, checksum) in [(held.op, held.checksum) for held in self.held]

    def may_use_reserve(self, given: Any) -> bool:
        """Whether it was said so."""
        return given.op in self.reserved


NEXT = PrepareMessage(CLUSTER, 0, 1, prepare(HEAD + 1))
AFTER = PrepareMessage(CLUSTER, 0, 1, prepare(HEAD + 2))
HELD = PrepareMessage(CLUSTER, 0, 1, prepare(HEAD))
MENDS = RepairMessage(CLUSTER, 0, prepare(HEAD))
CAUGHT_UP = CommittedMessage(CLUSTER, 0, prepare(HEAD + 1), 9)
HEARTBEAT = CommitMessage(CLUSTER, 0, 1, 4, bytes(16), 0)
PRE_VOTE = StartViewChangeMessage(CLUSTER, 0, 2)


@pytest.mark.parametrize("room", [JournalRoom.SOON, JournalRoom.FULL, JournalRoom.EXHAUSTED])
@pytest.mark.parametrize(
    ("message", "is_taken"),
    [(NEXT, False), (MENDS, False), (CAUGHT_UP, False), (HELD, True), (HEARTBEAT, True),
     (PRE_VOTE, True)],
)  # fmt: skip
def test_only_what_needs_no_room_is_taken(message: Any, is_taken: bool, room: JournalRoom) -> None:
    """Without room nothing new is journaled; held entries are acknowledged, and views go on."""
    replica = FetchingReplica()
    replica.room = room
    replica.entries.received(message)
    assert replica.taken == ([message] if is_taken else [])


@pytest.mark.parametrize("message", [MENDS, CAUGHT_UP])
def test_what_is_held_is_acknowledged_again_however_it_comes(message: Any) -> None:
    """A restarted primary repeats its entries as repairs, and needs the copies counted."""
    replica = FetchingReplica()
    replica.room = JournalRoom.FULL
    replica.held = [message.prepare]
    replica.entries.received(message)
    assert replica.taken == [message]


def test_what_waits_for_a_segment_is_taken_in_order() -> None:
    """While a segment is made entries wait, and only signs of life overtake them."""
    replica = FetchingReplica()
    replica.room = JournalRoom.SOON
    for message in (NEXT, HEARTBEAT, AFTER):
        replica.entries.received(message)
    assert replica.taken == [HEARTBEAT]
    replica.room = JournalRoom.FREE
    replica.entries.received(MENDS)
    assert replica.taken == [HEARTBEAT, NEXT, AFTER, MENDS]


def test_a_full_disk_lets_go_of_what_waits() -> None:
    """An entry that was not taken comes again: it is counted, and nothing of it is kept."""
    replica = FetchingReplica()
    replica.room = JournalRoom.SOON
    for message in (NEXT, AFTER):
        replica.entries.received(message)
    replica.room = JournalRoom.FULL
    replica.entries.look()
    replica.room = JournalRoom.FREE
    replica.entries.look()
    assert (replica.taken, replica.entries.refused) == ([], 2)


def test_little_waits() -> None:
    """A segment that does not come leaves no growing queue behind."""
    replica = FetchingReplica()
    replica.room = JournalRoom.SOON
    for _ in range(WAITING_MAX + 1):
        replica.entries.received(NEXT)
    assert replica.entries.refused == WAITING_MAX + 1


def test_what_will_free_the_disk_is_taken() -> None:
    """Commands about snapshots have a reserve, on a backup as on the primary."""
    replica = FetchingReplica()
    replica.room = JournalRoom.FULL
    replica.reserved = {HEAD + 1}
    replica.entries.received(NEXT)
    replica.entries.received(AFTER)
    assert replica.taken == [NEXT]


COMMITTED = RequestCommittedMessage(CLUSTER, 1, 6, 9)
CHOSEN = RequestPrepareMessage(CLUSTER, 1, 6, bytes(16))


@pytest.mark.parametrize(
    ("room", "has_room"),
    [
        (JournalRoom.FREE, True),
        (JournalRoom.SOON, True),
        (JournalRoom.FULL, False),
        (JournalRoom.EXHAUSTED, False),
    ],
)
def test_nobody_is_asked_in_vain(room: JournalRoom, has_room: bool) -> None:
    """A full disk asks for hardly any entries, since peers would have to read and send them."""
    replica = FetchingReplica()
    replica.room = room
    assert replica.entries.may_send(vsr.Send(0, CHOSEN)) is has_room
    sent = [replica.entries.may_send(vsr.Send(0, COMMITTED)) for _ in range(3)]
    assert sent == [True, has_room, has_room]
    assert replica.entries.may_send(vsr.Send(0, HEARTBEAT))


def test_a_full_disk_asks_each_replica_now_and_then() -> None:
    """A peer that truncated its log says so; if it were not asked, nobody would send a snapshot."""
    replica = FetchingReplica()
    replica.room = JournalRoom.FULL
    asked = [0, 0, 0]
    for replica.now_ticks in range(3 * FULL_QUESTION_MS // TICK_MS):
        for peer in (0, 2):
            asked[peer] += replica.entries.may_send(vsr.Send(peer, COMMITTED))
    assert asked == [3, 0, 3]


def test_a_damaged_entry_below_is_asked_for_beside_what_comes_next() -> None:
    """A peer may have dropped the one and hold the other: neither question stands for both."""
    replica = FetchingReplica()
    replica.room = JournalRoom.FULL
    damaged = RequestCommittedMessage(CLUSTER, 1, 2, 2)
    asked = {COMMITTED: 0, damaged: 0}
    for replica.now_ticks in range(2 * FULL_QUESTION_MS // TICK_MS):
        for question in asked:
            asked[question] += replica.entries.may_send(vsr.Send(0, question))
    assert asked == {COMMITTED: 2, damaged: 2}


def test_room_again_is_asked_at_once() -> None:
    """Postponed entries hold up neither a replica with room nor the next full disk."""
    replica = FetchingReplica()
    sent = []
    for replica.room in (
        JournalRoom.FULL,
        JournalRoom.FREE,
        JournalRoom.FREE,
        JournalRoom.FULL,
        JournalRoom.FULL,
    ):
        sent.append(replica.entries.may_send(vsr.Send(0, COMMITTED)))
    assert sent == [True, True, True, True, False]
