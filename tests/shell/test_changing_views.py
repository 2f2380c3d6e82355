"""What the driver keeps, and tells, over view changes and on a backup."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import vsr
from coordinator.replica.batcher import Batcher, LooseCommand
from coordinator.replica.driver import Driver
from coordinator.replica.ports import DriverEvents, Room
from viewstamp.errors import Refusal
from viewstamp.limits import SYSTEM_USER_ID

CREATE_TOPIC, BEGIN_SNAPSHOT = 210, 405


@dataclass
class PlannedCore:
    """A core of a log of `op` entries that answers the next event with `effects`."""

    effects: list[Any] = field(default_factory=list)
    op: int = 0
    refusal: vsr.RefusalReason | None = None
    unretired_count: int = 0

    @property
    def marks(self) -> Any:
        """How far the log is."""
        return SimpleNamespace(op=self.op)

    def step(self, event: vsr.Event, now_ticks: int) -> Sequence[Any]:
        """Return the plan."""
        effects, self.effects = self.effects, []
        return effects

    def batch_refusal(self) -> vsr.RefusalReason | None:
        """Refuse what is planned."""
        return self.refusal


@dataclass
class Replica:
    """A driver over a planned core, no log to apply, and a writer that remembers."""

    core: PlannedCore
    room: Room = Room.FREE
    reserve: list[bool] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)
    admission: Any = field(default_factory=lambda: SimpleNamespace(reset=lambda: None))

    def __post_init__(self) -> None:
        """Wire it."""

        def ignore(*_: object) -> Any:
            return None

        events = DriverEvents(
            founding_ready=ignore,
            status_changed=ignore,
            retired=ignore,
            cut_taken=ignore,
            catalog_changed=ignore,
            fatal=self.failures.append,
            room=lambda: self.room,
            persisting=ignore,
            persisted=ignore,
            local_read=ignore,
        )
        self.driver = Driver(self.core, self, self, events)  # type: ignore[arg-type]

    def persist_prepares(self, prepares: Sequence[Any], *, use_reserve: bool) -> None:
        """Remember from where the room is taken."""
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
    return SimpleNamespace(op=op, body=batch.body)


async def test_discarded_entries_no_longer_count() -> None:
    """A view may begin with a shorter log: nobody waits for entries that are no more."""
    replica = Replica(PlannedCore(op=10))
    replica.gives(vsr.PersistPrepares((await prepare_of(CREATE_TOPIC, 10),)))
    assert replica.driver.progress.op == 10
    replica.core.op = 8
    replica.gives(vsr.StatusChanged(vsr.Status.NORMAL, 2, 2))
    assert replica.driver.progress.op == 8


@pytest.mark.parametrize(
    ("code", "room", "expected"),
    [
        (BEGIN_SNAPSHOT, Room.FULL, True),
        (BEGIN_SNAPSHOT, Room.EXHAUSTED, True),
        (BEGIN_SNAPSHOT, Room.SOON, True),
        (CREATE_TOPIC, Room.FULL, False),
        (BEGIN_SNAPSHOT, Room.FREE, False),
    ],
)
async def test_a_backup_has_a_reserve_too(code: int, room: Room, expected: bool) -> None:
    """On a full disk the cut that will free space is journaled by backups, like by the primary."""
    replica = Replica(PlannedCore(), room=room)
    replica.gives(vsr.PersistPrepares((await prepare_of(code),)))
    assert replica.reserve == [expected]


async def test_who_gives_its_view_up_keeps_nobody_waiting() -> None:
    """What waits for a place is refused at the next tick, and whoever comes is sent away."""
    replica = Replica(PlannedCore(refusal=vsr.RefusalReason.PIPELINE_FULL))
    replica.gives(vsr.StatusChanged(vsr.Status.NORMAL, 3, 0))
    replica.driver.check_serving()
    future = asyncio.get_running_loop().create_future()
    replica.driver.submit(LooseCommand(CREATE_TOPIC, b"", 1, 1, "", future))
    await asyncio.sleep(0)
    assert not future.done()
    replica.core.refusal = vsr.RefusalReason.ABDICATING
    replica.gives(vsr.Arm(0))
    with pytest.raises(Refusal, match="not in service"):
        await future
    with pytest.raises(Refusal, match="not in service"):
        replica.driver.check_serving()
