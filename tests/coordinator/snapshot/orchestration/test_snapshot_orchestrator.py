"""What a replica does when something fails during a generation, on a fake clock."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_types import (
    BeginSnapshot,
    CompleteSnapshot,
    FailSnapshot,
    RetentionClass,
    SetRetention,
)
from coordinator.mux.stage import STAGES, Stage
from coordinator.snapshot.divergence import DivergedError
from coordinator.snapshot.orchestrator import REWRITE_DELAY_MS, OrchestrationError
from coordinator.snapshot.triggers import TriggerSettings
from coordinator.snapshot.values import AlreadyDecided
from coordinator.snapshot.work import Durable
from tests.coordinator.snapshot.orchestration.orchestra import (
    CHECKSUM,
    FakeFiles,
    OrchestratorTrial,
    primary,
    tasks,
)
from viewstamp.limits import SNAPSHOT_DEADLINE_MS


async def test_a_backup_writes_and_does_not_propose() -> None:
    """A replica that is not the primary makes generations durable, and proposes nothing."""
    world = OrchestratorTrial()
    world.begin(1)
    await world.until_durable(1)
    world.now_ms = SNAPSHOT_DEADLINE_MS * 2
    await world.settle()
    assert world.proposed == []


async def test_asked_for_is_begun_at_once() -> None:
    """The primary cuts a requested snapshot at once, despite a back-off; others do not."""
    world = primary()
    world.orchestrator.fail(world.create(), "no")
    await world.until(lambda: world.states() == ["FAILED"])
    world.orchestrator.deactivate()
    world.create()
    await world.settle()
    assert world.parsed_proposals() == []
    world.orchestrator.activate()
    await world.settle()
    assert world.parsed_proposals() == [BeginSnapshot(2, 5, 7)]


async def test_adopted_once_and_in_order() -> None:
    """Each generation is adopted once, even if the next cut comes during an adoption."""
    world = primary()
    world.adopting.clear()
    world.begin(1)
    await world.until_durable(1)
    await world.settle()
    world.sequence_proposals()
    adopting = asyncio.ensure_future(world.settle())
    await asyncio.sleep(0)
    world.begin(2)
    world.adopting.set()
    await adopting
    assert (world.adopted, world.files.deleted) == ([1], [])
    assert world.orchestrator.pins() == {1, 2}
    await world.until(lambda: world.adopted == [1, 2])
    await world.settle()
    assert world.adopted == [1, 2]


async def test_completed_before_the_next_cut_is_adopted_first() -> None:
    """A generation that was completed just before the next cut is still adopted."""
    world = primary()
    world.begin(1)
    await world.until_durable(1)
    await world.settle()
    world.sequence_proposals()
    world.begin(2)
    await world.until(lambda: world.adopted == [1, 2])
    assert world.files.deleted == []


async def test_unfinished_is_abandoned_at_the_next_cut() -> None:
    """A slow replica gives up a generation when the next one is cut, even a completed one."""
    world = OrchestratorTrial()
    world.services.hold()
    world.begin(1)
    await world.until(lambda: len(world.services.reads) == len(STAGES))
    world.command(CompleteSnapshot(1, b"r" * 32, tasks()))  # the others were faster
    world.begin(2)
    assert world.orchestrator.pins() == {1, 2}
    world.services.release()
    await world.until_durable(2)
    assert (world.files.deleted, world.adopted) == ([1], [])
    assert {g for g, _ in world.files.discarded} == {1}


async def test_slow_replica_goes_on_after_completion() -> None:
    """A generation that the others completed is still written here, and adopted once durable."""
    world = OrchestratorTrial()
    world.services.hold()
    world.begin(1)
    await world.until(lambda: len(world.services.reads) == len(STAGES))
    root = b"d" * 32
    world.command(CompleteSnapshot(1, root, tasks()))
    await world.settle()
    assert world.adopted == []
    world.services.release()
    await world.until(lambda: world.adopted == [1])


async def test_failed_locally_after_completion() -> None:
    """A generation that the others completed is written again after a failure here."""
    world = OrchestratorTrial()
    world.files.full = "no space"
    world.begin(1)
    world.command(CompleteSnapshot(1, b"d" * 32, tasks()))
    await world.until(lambda: len(world.orchestrator.reported(1)) == len(STAGES))
    await world.until(lambda: len(world.files.blocks) == len(STAGES))
    for _ in range(100):
        await asyncio.sleep(0)
        await world.settle()
    assert len(world.files.blocks) == len(STAGES)
    world.files.full = ""
    world.now_ms += REWRITE_DELAY_MS
    await world.until(lambda: world.adopted == [1])


async def test_other_root_stops_the_replica() -> None:
    """A replica whose state differs from the completed one must not go on."""
    world = OrchestratorTrial()
    world.begin(1)
    await world.until_durable(1)
    world.command(CompleteSnapshot(1, b"x" * 32, tasks()))
    with pytest.raises(DivergedError, match="must not go on"):
        await world.settle()


async def test_failed_in_the_log() -> None:
    """A failed generation's work is ended, then its files are deleted; the next one is complete."""
    world = primary()
    world.services.hold()
    world.begin(1)
    await world.until(lambda: len(world.services.reads) == len(STAGES), sequencing=False)
    world.command(FailSnapshot(1, "slow"))
    await world.settle()
    assert world.files.deleted == [1]
    assert len(world.files.discarded) == len(STAGES)
    assert world.alarms == ["snapshot 1 has failed: slow"]
    world.services.release()
    assert await world.snapshot() == 2
    assert world.alarms == []


async def test_nothing_is_reported_once_it_failed() -> None:
    """Nothing is reported after the decision, even while the work is still being ended."""
    world = OrchestratorTrial()
    world.begin(1)
    world.command(FailSnapshot(1, "why"))
    with pytest.raises(AlreadyDecided):
        world.orchestrator.report(1, tasks(Stage.USERS))
    await world.settle()


class StubbornWork:
    """Work whose thread goes on for a while after its cancellation."""

    def __init__(self) -> None:
        """Begin with nothing done."""
        self.done: list[str] = []
        self.thread_ends = asyncio.Event()

    async def make_durable(self, *_: object) -> bytes:
        """Work until cancelled, and then a little longer."""
        try:
            await asyncio.Event().wait()
        finally:
            await self.thread_ends.wait()
            self.done.append("ended")
        return b""

    async def delete(self, generation: int) -> None:
        """Delete the files."""
        self.done.append("deleted")


async def test_files_go_after_the_last_write() -> None:
    """The files of a generation are deleted only once nobody can write to them any more."""
    work = StubbornWork()
    world = OrchestratorTrial(work=work)
    world.begin(1)
    await world.settle()
    await asyncio.sleep(0)
    world.command(FailSnapshot(1, "why"))
    settling = asyncio.ensure_future(world.settle())
    for _ in range(10):
        await asyncio.sleep(0)
    assert work.done == []
    work.thread_ends.set()
    await settling
    assert work.done == ["ended", "deleted"]


async def test_durable_and_failed_in_the_log() -> None:
    """Durable files are deleted, too, if the log has given the generation up."""
    world = OrchestratorTrial()
    world.begin(1)
    await world.until_durable(1)
    world.command(FailSnapshot(1, "too few others"))
    await world.settle()
    assert (world.files.deleted, world.files.durable) == ([1], {})


async def test_full_disk_fails_at_once() -> None:
    """A failure that a retry cannot cure fails a generation at once, with its reason."""
    world = primary()
    world.files.full = "no space left on " + "x" * 1000
    world.begin(1)
    await world.until(lambda: world.states() == ["FAILED"])
    assert world.machine.current().failure.startswith("no space left on")
    assert len(world.machine.current().failure) == 500


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [("beyond", 1, "beyond the cut"), ("ends_early", True, "without a summary")],
)
async def test_section_that_cannot_be(attribute: str, value: int, reason: str) -> None:
    """A section that is not of this cut, or is cut short, fails the generation."""
    world = primary()
    setattr(world.services, attribute, value)
    world.begin(1)
    await world.until(lambda: world.states() == ["FAILED"])
    assert reason in world.machine.current().failure


async def test_section_against_another_base() -> None:
    """A section that is a delta against an unexpected generation is read again."""
    world = primary()
    world.services.base_generation = 3
    world.begin(1)
    await world.until(lambda: world.adopted == [1])
    assert len(world.services.reads) == 2 * len(STAGES)
    assert sorted(world.files.discarded) == [(1, stage) for stage in STAGES]


async def test_defect_ends_the_process() -> None:
    """An unexpected error leaves the loop, and so ends the process."""
    world = primary()
    world.files.bug = RuntimeError("a sync failed")
    world.begin(1)
    with pytest.raises(RuntimeError, match="a sync failed"):
        async with asyncio.timeout(10):
            await world.orchestrator.run()


async def test_cut_out_of_order() -> None:
    """A cut that does not come after all others is impossible."""
    world = OrchestratorTrial()
    world.begin(1)
    with pytest.raises(OrchestrationError, match="was cut after"):
        world.orchestrator.cut_taken(world.cut(1), CHECKSUM)


async def test_new_primary_restarts_the_deadline() -> None:
    """The deadline counts from when this replica became the primary."""
    world = OrchestratorTrial()
    world.services.hold()
    world.begin(1)
    world.now_ms = SNAPSHOT_DEADLINE_MS * 3
    world.orchestrator.activate()
    await world.settle()
    assert world.parsed_proposals() == []
    world.now_ms += SNAPSHOT_DEADLINE_MS
    await world.settle()
    assert [type(each) for each in world.parsed_proposals()] == [FailSnapshot]
    await world.close()


async def test_never_cut_fails_at_the_deadline() -> None:
    """A requested generation that could not be cut fails as well."""
    world = primary()
    world.create()
    world.now_ms = SNAPSHOT_DEADLINE_MS
    await world.settle()
    (proposed,) = world.parsed_proposals()
    assert proposed == FailSnapshot(1, "not durable within 120000 ms: it was not cut")


async def test_retention_change_decides_nothing() -> None:
    """A change that leaves the state alone is not a second decision."""
    world = primary()
    await world.snapshot()
    world.alarms.append("kept")
    world.command(SetRetention(1, RetentionClass.PINNED))
    assert world.alarms == ["kept"]


# --- After a restart -----------------------------------------------------------------------------


def _restored(world: OrchestratorTrial) -> OrchestratorTrial:
    """Return a new process of a replica that has adopted generation 1, before its replay.

    The catalog section of a generation shows it as CREATED.
    """
    machine = CatalogMachine(world.machine.codec)
    machine.apply(BeginSnapshot(1, 5, 0), 11, 11, 11_000, 1)
    new = OrchestratorTrial(files=world.files, machine=machine, adopted=world.files.durable[1])
    new.op, new.revision = 11, 11
    return new


async def _with_one_adopted() -> OrchestratorTrial:
    world = primary()
    world.begin(1)
    await world.until(lambda: world.adopted == [1])
    return world


async def test_restart_behind_a_generation() -> None:
    """The generation of the restart is not written or adopted again; its decision is replayed."""
    world = _restored(await _with_one_adopted())
    await world.settle()
    world.command(CompleteSnapshot(1, b"d" * 32, tasks()))
    world.orchestrator.activate()
    await world.settle()
    assert (world.services.reads, world.adopted, world.proposed) == ([], [], [])
    assert await world.snapshot() == 2


async def test_restart_with_the_decision_lost() -> None:
    """A generation restored into another cluster, whose log lacks the decision, is completed
    again."""
    world = _restored(await _with_one_adopted())
    await world.settle()
    assert world.proposed == []
    world.orchestrator.activate()
    await world.until(lambda: world.states() == ["COMPLETED"])
    assert world.machine.current().root == b"d" * 32


async def test_restart_in_the_middle_of_writing() -> None:
    """A cut that is replayed is frozen and written again."""
    world = _restored(await _with_one_adopted())
    world.command(CompleteSnapshot(1, b"d" * 32, tasks()))
    world.begin(2)
    world.orchestrator.activate()
    await world.until(lambda: world.adopted == [2])
    assert world.files.written == [1, 2]


async def test_restart_before_the_cut() -> None:
    """After the replay the primary begins a generation that was requested and never cut."""
    world = _restored(await _with_one_adopted())
    world.command(CompleteSnapshot(1, b"d" * 32, tasks()))
    world.create()
    await world.settle()
    assert world.proposed == []
    world.orchestrator.activate()
    await world.until(lambda: world.adopted == [2])


async def test_restart_between_completion_and_adoption() -> None:
    """A completed durable generation that was not adopted before the crash is compared and
    adopted."""
    world = OrchestratorTrial()
    world.begin(1)
    await world.until_durable(1)
    again = OrchestratorTrial(files=world.files)
    again.begin(1)
    again.command(CompleteSnapshot(1, b"d" * 32, tasks()))
    await again.until(lambda: again.adopted == [1])
    assert again.files.written == [1]
    assert len(again.services.reads) == len(STAGES)


async def test_restart_with_files_of_another_cut() -> None:
    """Files of an unacknowledged cut, which is now another one, are written anew."""
    files = FakeFiles()
    files.durable[1] = Durable(1, 999, CHECKSUM, b"x" * 32, tasks())
    world = primary(files=files)
    world.begin(1)
    await world.until(lambda: world.adopted == [1])
    assert (files.deleted, files.written) == ([1], [1])


async def test_restart_with_another_digest() -> None:
    """The same cut with another digest than the files have fails loudly."""
    world = OrchestratorTrial()
    world.begin(1)
    await world.until_durable(1)
    again = primary(files=world.files)
    again.services.digest = b"e" * 32
    again.begin(1)
    await again.until(lambda: again.states() == ["FAILED"])
    assert "viewstamp snapshot verify" in again.machine.current().failure


async def test_completed_in_the_log_without_files() -> None:
    """A completed generation whose files are lost is written again in the replay, and adopted."""
    world = OrchestratorTrial()
    world.begin(1)
    world.command(CompleteSnapshot(1, b"d" * 32, tasks()))
    await world.until(lambda: world.adopted == [1])


# --- Triggers ------------------------------------------------------------------------------------


async def test_triggered_by_commands() -> None:
    """The primary begins a snapshot by itself when enough has gathered, and never two at a time."""
    world = primary(settings=TriggerSettings(commands=50))
    world.revision += 30
    await world.settle()
    assert world.proposed == []
    world.revision += 50
    await world.until(lambda: world.adopted == [1])
    await world.settle()
    assert world.proposed == []


async def test_broken_disk_backs_off() -> None:
    """The time between failed attempts grows."""
    settings = TriggerSettings(commands=1, retry_delay_ms=1000, retry_delay_max_ms=3000)
    world = primary(settings=settings)
    world.files.full = "no space"
    begun: list[int] = []
    while len(begun) < 5:
        await world.settle()
        if world.proposed:
            begun.append(world.now_ms)
            await world.until(lambda: world.states() == ["FAILED"] * len(begun))
        world.now_ms += 100
    assert [b - a for a, b in pairwise(begun)] == [1000, 2000, 3000, 3000]


async def test_loop_ends_its_work() -> None:
    """When the process ends, no work goes on reading or writing."""
    world = primary()
    world.services.hold()
    world.begin(1)
    running = asyncio.ensure_future(world.orchestrator.run())
    await world.services.all_reading.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(world.files.discarded) == len(STAGES)
    assert Stage.USERS in {stage for _, stage in world.files.discarded}
