"""The entry that ends an epoch on its way into the log, and what a driver does as one begins."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator import vsr
from coordinator.mux.types import BEGIN_EPOCH_CODE
from coordinator.replica.batcher import Batcher, LooseCommand
from coordinator.replica.driver import Driver
from coordinator.replica.peers import PeerPorts
from coordinator.replica.ports import DriverEvents, JournalRoom
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import SYSTEM_USER_ID

CREATE_TOPIC = 210
FIRST = vsr.Membership(0, (0, 1))
SECOND = vsr.Membership(vsr.view_in(1, 0), (0, 1), (2,), began_op=2)


def loose(code: int) -> LooseCommand:
    """Return a command of the replica itself."""
    future = asyncio.get_running_loop().create_future()
    return LooseCommand(code, b"", SYSTEM_USER_ID, 0, "", future)


async def test_a_change_has_an_entry_of_its_own() -> None:
    """It ends the epoch, nothing else is in it, and the room for snapshots is not for it."""
    batcher = Batcher()
    for code in (CREATE_TOPIC, BEGIN_EPOCH_CODE, CREATE_TOPIC):
        batcher.add(loose(code))
    assert batcher.has_lone_command
    change, crowd = batcher.take_change(), batcher.take()
    assert change is not None and crowd is not None
    assert (change.ends_epoch, change.command_count, change.may_use_reserve) == (True, 1, False)
    assert (crowd.ends_epoch, crowd.command_count) == (False, 2)
    assert batcher.take_change() is None
    assert len(batcher) == 0


async def test_one_change_waits_at_a_time() -> None:
    """A second one would be planned by members that are not those of its epoch."""
    batcher = Batcher()
    batcher.add(loose(BEGIN_EPOCH_CODE))
    with pytest.raises(Refusal, match="another change of members") as refused:
        batcher.add(loose(BEGIN_EPOCH_CODE))
    assert refused.value.reason == Reason.REASON_OVERLOADED


async def test_a_change_is_refused_like_any_command_on_a_full_disk() -> None:
    """Nobody waits for room that only an operator can make."""
    batcher = Batcher()
    change = loose(BEGIN_EPOCH_CODE)
    batcher.add(change)
    batcher.refuse_ordinary(Refusal(Reason.REASON_NO_SPACE, "full"))
    assert isinstance(change.future.exception(), Refusal)
    assert batcher.take_change() is None


class EpochCore:
    """A core that admits each batch as the next entry, and enters the second epoch when told."""

    def __init__(self) -> None:
        self.membership = FIRST
        self.unapplied_count = 0
        self.batches: list[vsr.ClientBatch] = []
        self.planned: list[vsr.Effect] = []
        self.begins = False

    @property
    def marks(self) -> Any:
        """Entries up to the second are committed."""
        return SimpleNamespace(op=len(self.batches), commit_max=2)

    def batch_refusal(self) -> None:
        """Never refuse."""

    def step(self, event: vsr.Event, now_ticks: int) -> Sequence[vsr.Effect]:
        """Admit a batch, or give what is planned."""
        if isinstance(event, vsr.ClientBatch):
            self.batches.append(event)
            return [vsr.Admitted(len(self.batches), b"c" * 16, 1, 1, 1)]
        if self.begins:
            self.membership = SECOND
        planned, self.planned = self.planned, []
        return planned


class EpochReplica:
    """A driver over such a core, and what it tells, in order."""

    def __init__(self) -> None:
        self.core: Any = EpochCore()
        self.told: list[object] = []

        def ignore(*_: object) -> Any:
            return None

        events = DriverEvents(
            bootstrap_ready=ignore,
            status_changed=lambda changed: self.told.append(changed.status),
            applied=ignore,
            cut_taken=ignore,
            catalog_changed=ignore,
            fatal=self.told.append,
            room=lambda: JournalRoom.FREE,
            persisting=ignore,
            persisted=ignore,
            local_read=ignore,
            stage=ignore,
            epoch_began=self.told.append,
        )
        peers = PeerPorts(send=lambda to, message: self.told.append(to))
        mux: Any = SimpleNamespace(
            feature_level=9, admission=SimpleNamespace(reset=lambda: None), proposals=()
        )
        writer: Any = SimpleNamespace(persist_superblock=ignore, discard_after=ignore, read=ignore)
        core: Any = self.core
        self.driver = Driver(core, mux, writer, events, peers)
        self.driver.progress.status = vsr.ReplicaStatus.NORMAL

    async def submitted(self, code: int) -> asyncio.Future[Any]:
        """Have a command admitted in an entry of its own, and return what its caller waits for."""
        command = loose(code)
        self.driver.intake.submit(command)
        await asyncio.sleep(0)
        assert not [each for each in self.told if isinstance(each, BaseException)]
        return command.future


async def test_the_core_is_told_which_entry_ends_the_epoch() -> None:
    """Every other entry leaves the members as they are."""
    replica = EpochReplica()
    await replica.submitted(CREATE_TOPIC)
    await replica.submitted(BEGIN_EPOCH_CODE)
    assert [batch.ends_epoch for batch in replica.core.batches] == [False, True]


async def test_the_shell_knows_the_members_before_anything_is_sent_to_them() -> None:
    """A message to a new member needs its link, so the epoch is told before the step's effects."""
    replica = EpochReplica()
    replica.core.begins = True
    message: Any = SimpleNamespace()
    replica.core.planned = [
        vsr.StatusChanged(vsr.ReplicaStatus.NORMAL, SECOND.first_view, 0),
        vsr.Send(2, message),
    ]
    replica.driver.step(vsr.Tick())
    assert replica.told == [SECOND, vsr.ReplicaStatus.NORMAL, 2]


async def test_callers_of_committed_entries_get_their_answers_over_the_change() -> None:
    """What is committed is applied here, in whatever epoch. An entry behind it may be gone, and
    who waits for a place asks the next primary."""
    replica = EpochReplica()
    first = await replica.submitted(CREATE_TOPIC)
    change = await replica.submitted(BEGIN_EPOCH_CODE)
    behind = await replica.submitted(CREATE_TOPIC)
    waiting = loose(CREATE_TOPIC)
    replica.driver.intake.batcher.add(waiting)
    replica.core.begins = True
    replica.core.planned = [vsr.StatusChanged(vsr.ReplicaStatus.VIEW_CHANGE, SECOND.first_view, 0)]
    replica.driver.step(vsr.Tick())
    assert (first.done(), change.done()) == (False, False)
    reasons = [future.exception() for future in (behind, waiting.future)]
    assert [each.reason for each in reasons if isinstance(each, Refusal)] == [
        Reason.REASON_OUTCOME_UNKNOWN,
        Reason.REASON_VIEW_CHANGE,
    ]


async def test_callers_of_committed_entries_look_elsewhere_after_a_view_change() -> None:
    """In a view change of one epoch nobody waits at a replica that may never lead again."""
    replica = EpochReplica()
    first = await replica.submitted(CREATE_TOPIC)
    replica.core.planned = [vsr.StatusChanged(vsr.ReplicaStatus.VIEW_CHANGE, 1, 1)]
    replica.driver.step(vsr.Tick())
    assert isinstance(first.exception(), Refusal)


def test_the_shell_is_told_of_the_epoch_that_a_snapshot_led_to() -> None:
    """A replica that starts from a snapshot of others is in their epoch from the first step on,
    whatever its superblock says."""
    replica = EpochReplica()
    replica.driver.step(vsr.Tick())
    replica.driver.step(vsr.Tick())
    assert replica.told == [FIRST]
