"""What the driver keeps and reports over view changes and on a backup."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import vsr
from coordinator.replica.batcher import Batcher, LooseCommand
from coordinator.replica.driver import Driver
from coordinator.replica.peers import PeerPorts
from coordinator.replica.ports import DriverEvents, JournalRoom
from coordinator.vsr.messages import PrepareMessage
from viewstamp.errors import Refusal
from viewstamp.limits import SYSTEM_USER_ID

CREATE_TOPIC, BEGIN_SNAPSHOT = 210, 405


@dataclass
class PlannedCore:
    """A core of a log of `op` entries that answers the next event with `effects`."""

    effects: list[Any] = field(default_factory=list)
    op: int = 0
    refusal: vsr.RefusalReason | None = None
    unapplied_count: int = 0
    events: list[vsr.Event] = field(default_factory=list)
    journals: bool = False  # each received entry
    membership: vsr.Membership = field(default_factory=lambda: vsr.Membership(0, (0, 1, 2)))

    @property
    def marks(self) -> Any:
        """How far the log reaches."""
        return SimpleNamespace(op=self.op)

    def step(self, event: vsr.Event, now_ticks: int) -> Sequence[Any]:
        """Return the plan."""
        self.events.append(event)
        if self.journals and isinstance(event, vsr.Received):
            return [vsr.PersistPrepares((event.message.prepare,))]  # type: ignore[union-attr]
        effects, self.effects = self.effects, []
        return effects

    def holds(self, op: int, checksum: bytes) -> bool:
        """Hold nothing."""
        return False

    def batch_refusal(self) -> vsr.RefusalReason | None:
        """Refuse what is planned."""
        return self.refusal


@dataclass
class ChangingReplica:
    """A driver over a planned core, no log to apply, and a writer that remembers."""

    core: PlannedCore
    room: JournalRoom = JournalRoom.FREE
    reserve: list[bool] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    admission: Any = field(default_factory=lambda: SimpleNamespace(reset=lambda: None))
    persisting: Callable[[Sequence[Any]], None] = lambda prepares: None
    status_changed: Callable[[vsr.StatusChanged], None] = lambda changed: None

    def __post_init__(self) -> None:
        """Wire it."""

        def ignore(*_: object) -> Any:
            return None

        events = DriverEvents(
            bootstrap_ready=ignore,
            status_changed=self._status_changed,
            applied=ignore,
            cut_taken=ignore,
            catalog_changed=ignore,
            fatal=self.failures.append,
            room=lambda: self.room,
            persisting=self._persisting,
            persisted=ignore,
            local_read=ignore,
            stage=ignore,
        )
        peers = PeerPorts(replica_id=0, address=lambda replica_id: f"replica {replica_id}")
        self.driver = Driver(self.core, self, self, events, peers)  # type: ignore[arg-type]

    def _status_changed(self, changed: vsr.StatusChanged) -> None:
        self.status_changed(changed)

    def _persisting(self, prepares: Sequence[Any]) -> None:
        self.persisting(prepares)

    async def read(self, op: int) -> None:
        """Have no log."""

    def persist_prepares(self, prepares: Sequence[Any], *, use_reserve: bool) -> None:
        """Remember where the room is taken from."""
        self.reserve.append(use_reserve)

    def gives(self, *effects: Any) -> None:
        """Have the core give these effects."""
        self.core.effects = list(effects)
        self.driver.step(vsr.Tick())
        assert self.failures == []


async def prepare_of(code: int, op: int = 1) -> Any:
    """Return the prepare of one command."""
    batcher = Batcher()
    future = asyncio.get_running_loop().create_future()
    batcher.add(LooseCommand(code, b"", SYSTEM_USER_ID, 0, "", future))
    batch = batcher.take_snapshot_command() or batcher.take()
    assert batch is not None
    return SimpleNamespace(op=op, body=batch.body, checksum=b"")


async def test_discarded_entries_no_longer_count() -> None:
    """A view may begin with a shorter log: no caller waits for entries that are gone."""
    replica = ChangingReplica(PlannedCore(op=10))
    replica.gives(vsr.PersistPrepares((await prepare_of(CREATE_TOPIC, 10),)))
    assert replica.driver.progress.op == 10
    replica.core.op = 8
    replica.gives(vsr.StatusChanged(vsr.ReplicaStatus.NORMAL, 2, 2))
    assert replica.driver.progress.op == 8


@pytest.mark.parametrize(
    ("code", "room", "expected"),
    [
        (BEGIN_SNAPSHOT, JournalRoom.FULL, True),
        (BEGIN_SNAPSHOT, JournalRoom.EXHAUSTED, True),
        (BEGIN_SNAPSHOT, JournalRoom.SOON, True),
        (CREATE_TOPIC, JournalRoom.FULL, False),
        (BEGIN_SNAPSHOT, JournalRoom.FREE, False),
    ],
)
async def test_a_backup_has_a_reserve_too(code: int, room: JournalRoom, expected: bool) -> None:
    """On a full disk backups journal the cut that will free space, as the primary does."""
    replica = ChangingReplica(PlannedCore(), room=room)
    replica.gives(vsr.PersistPrepares((await prepare_of(code),)))
    assert replica.reserve == [expected]


@pytest.mark.parametrize(
    ("status", "primary", "address"),
    [
        (vsr.ReplicaStatus.NORMAL, 0, None),
        (vsr.ReplicaStatus.VIEW_CHANGE, 0, None),
        (vsr.ReplicaStatus.RECOVERING, 0, None),
        (vsr.ReplicaStatus.NORMAL, 2, "replica 2"),
    ],
)
async def test_nobody_is_sent_to_where_they_are(
    status: vsr.ReplicaStatus, primary: int, address: str | None
) -> None:
    """A late read goes to another replica, or nowhere: the next primary may be this one."""
    replica = ChangingReplica(PlannedCore())
    replica.gives(vsr.StatusChanged(status, 3, primary))
    refusal = replica.driver.serving.late_read(5_000)
    assert (None if refusal is None else refusal.details["address"]) == address


async def test_each_entry_is_let_in_by_the_room_that_is_left() -> None:
    """Room may come in the middle of a step: the waiting entries still take it one by one."""
    replica = ChangingReplica(PlannedCore(op=5, journals=True), room=JournalRoom.SOON)
    for op in (6, 7):
        entry = await prepare_of(CREATE_TOPIC, op)
        replica.driver.entries.received(PrepareMessage(bytes(16), 1, 1, entry))
    assert replica.reserve == []

    def fill(_: Sequence[Any]) -> None:
        replica.room = JournalRoom.SOON

    def free(_: vsr.StatusChanged) -> None:
        replica.room = JournalRoom.FREE
        replica.driver.pump()

    replica.persisting, replica.status_changed = fill, free
    replica.gives(vsr.StatusChanged(vsr.ReplicaStatus.NORMAL, 1, 1))
    await asyncio.sleep(0)
    assert (len(replica.reserve), replica.room) == (1, JournalRoom.SOON)
    replica.gives(vsr.StatusChanged(vsr.ReplicaStatus.NORMAL, 1, 1))
    await asyncio.sleep(0)
    assert len(replica.reserve) == 2


@pytest.mark.parametrize("room", JournalRoom)
def test_a_damaged_record_is_told_with_the_room_there_is(room: JournalRoom) -> None:
    """Writing an entry anew takes room like any other entry; without any the process would end."""
    replica = ChangingReplica(PlannedCore(), room=room)
    replica.driver.found_faulty(3)
    assert replica.core.events == [vsr.RecordFaulty(3, has_room=room is JournalRoom.FREE)]


async def test_who_gives_its_view_up_keeps_nobody_waiting() -> None:
    """A replica that gives up its view refuses callers at the next tick, and newcomers at once."""
    replica = ChangingReplica(PlannedCore(refusal=vsr.RefusalReason.PIPELINE_FULL))
    replica.gives(vsr.StatusChanged(vsr.ReplicaStatus.NORMAL, 3, 0))
    replica.driver.serving.check()
    future = asyncio.get_running_loop().create_future()
    replica.driver.intake.submit(LooseCommand(CREATE_TOPIC, b"", 1, 1, "", future))
    await asyncio.sleep(0)
    assert not future.done()
    replica.core.refusal = vsr.RefusalReason.ABDICATING
    replica.gives(vsr.Arm(0))
    with pytest.raises(Refusal, match="not in service"):
        await future
    with pytest.raises(Refusal, match="not in service"):
        replica.driver.serving.check()
