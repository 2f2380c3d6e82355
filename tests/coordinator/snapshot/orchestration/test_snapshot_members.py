"""One of three replicas: what it reports to the primary, and what the primary proposes when."""

from __future__ import annotations

import asyncio

import pytest

from coordinator.base.roster import Roster
from coordinator.mux.catalog_types import BeginSnapshot, CompleteSnapshot, FailSnapshot
from coordinator.mux.stage import STAGES, Stage
from coordinator.snapshot.agreement import DurableReport, Reports
from coordinator.snapshot.decisions import LocalState
from coordinator.snapshot.divergence import DivergedError
from coordinator.snapshot.orchestrator import REWRITE_DELAY_MS
from tests.coordinator.snapshot.orchestration.orchestra import OrchestratorTrial, primary, task
from viewstamp.limits import SNAPSHOT_DEADLINE_MS

SAME, OTHER = b"d" * 32, b"x" * 32  # the digest that services report, and another


def report(digest: bytes = SAME, *, differs: Stage | None = None) -> DurableReport:
    """Return a replica's report: its root is a digest, and one section may have another."""
    tasks = tuple(
        task(stage, revision=11, digest=OTHER if stage is differs else SAME) for stage in STAGES
    )
    return DurableReport(digest, tasks)


def one_of_three(replica_id: int = 0) -> OrchestratorTrial:
    """Return a replica among three, not the primary."""
    return OrchestratorTrial(reports=Reports(Roster.founding(replica_id, 3)))


async def adopting_slowly() -> tuple[OrchestratorTrial, asyncio.Future[None]]:
    """Return one of three replicas that is about to adopt generation 1, until `adopting` is set."""
    world = one_of_three(1)
    world.begin(1)
    await world.until_durable(1)
    world.adopting.clear()
    world.command(CompleteSnapshot(1, SAME, report().tasks))
    settling = asyncio.ensure_future(world.settle())
    await asyncio.sleep(0)
    return world, settling


async def durable_primary() -> OrchestratorTrial:
    """Return the primary of three, with generation 1 durable."""
    world = primary(reports=Reports(Roster.founding(0, 3)))
    world.begin(1)
    await world.until_durable(1)
    await world.settle()
    return world


async def test_own_root_alone_is_no_majority() -> None:
    """The primary completes a generation once another replica has the same root, not before."""
    world = await durable_primary()
    assert world.parsed_proposals() == []
    world.orchestrator.durable_elsewhere(2, 1, report())
    await world.settle()
    assert [type(each) for each in world.parsed_proposals()] == [CompleteSnapshot]
    await world.until(lambda: world.adopted == [1])
    assert world.diverged == []


async def test_report_of_another_generation_does_not_count() -> None:
    """A replica's report of an older or newer generation does not complete this one."""
    world = await durable_primary()
    for generation in (2, 0):
        world.orchestrator.durable_elsewhere(2, generation, report())
        await world.settle()
    assert world.parsed_proposals() == []


async def test_backup_tells_the_primary_until_it_is_decided() -> None:
    """A backup reports its durable generations at each look, and proposes nothing."""
    world = one_of_three(1)
    world.begin(1)
    await world.until_durable(1)
    for count in (1, 2, 3):
        await world.settle()
        assert len(world.told) >= count
    assert {(each.generation, each.root) for each in world.told} == {(1, SAME)}
    assert world.parsed_proposals() == []
    world.command(CompleteSnapshot(1, SAME, report().tasks))
    told = len(world.told)
    await world.until(lambda: world.adopted == [1])
    await world.settle()
    assert len(world.told) == told


async def test_backup_that_becomes_the_primary_hears_all_again() -> None:
    """Reports count for the view they came in; a new primary gathers its own."""
    world = one_of_three(1)
    world.begin(1)
    await world.until_durable(1)
    world.orchestrator.activate()
    await world.settle()
    assert world.parsed_proposals() == []
    world.orchestrator.durable_elsewhere(0, 1, report())
    world.orchestrator.deactivate()
    world.orchestrator.activate()
    await world.settle()
    assert world.parsed_proposals() == []
    world.orchestrator.durable_elsewhere(2, 1, report())
    await world.until(lambda: world.states() == ["COMPLETED"])


async def test_majority_without_the_primary() -> None:
    """A primary that is slow, or cannot write, completes what the others agree upon."""
    for break_it in (False, True):
        world = primary(reports=Reports(Roster.founding(0, 3)))
        if break_it:
            world.files.full = "no room"
        else:
            world.services.hold()
        world.begin(1)
        await world.settle()
        if break_it:
            broken = LocalState.BROKEN
            await world.until(lambda w=world, b=broken: w.orchestrator.local_state(1) is b)  # type: ignore[misc]
            assert world.parsed_proposals() == []
        world.orchestrator.durable_elsewhere(1, 1, report())
        world.orchestrator.durable_elsewhere(2, 1, report())
        await world.until(lambda w=world: w.states() == ["COMPLETED"])  # type: ignore[misc]
        assert world.adopted == []
        assert world.orchestrator.local_state(1) in (LocalState.FROZEN, LocalState.BROKEN)
        await world.close()


async def test_all_try_again_once_their_disks_have_room() -> None:
    """What failed everywhere is written again before the deadline, without another cut."""
    world = primary(reports=Reports(Roster.founding(0, 3)))
    world.files.full = "no room"
    world.begin(1)
    await world.settle()
    await world.until(lambda: world.orchestrator.local_state(1) is LocalState.BROKEN)
    world.files.full = ""
    world.now_ms += REWRITE_DELAY_MS
    await world.until_durable(1)
    assert world.states() == ["CREATED"]


async def test_writing_late_does_not_show_a_completed_one_as_under_way() -> None:
    """A completed generation that a slow replica still writes is not published as created."""
    world = one_of_three(1)
    world.services.hold()
    world.begin(1)
    await world.settle()
    world.command(CompleteSnapshot(1, SAME, report().tasks))
    published = len(world.published)
    world.services.release()
    await world.until(lambda: world.adopted == [1])
    assert len(world.published) == published


async def test_slow_backup_abandons_a_generation_at_the_next_cut() -> None:
    """A generation that is completed but not durable here by the next cut is never adopted."""
    world = one_of_three(1)
    world.services.hold()
    world.begin(1)
    await world.settle()
    world.command(CompleteSnapshot(1, SAME, report().tasks))
    world.begin(2)
    await world.settle()
    assert world.orchestrator.local_state(1) is LocalState.NOTHING
    assert world.files.deleted == [1]
    world.services.release()
    await world.until_durable(2)
    world.command(CompleteSnapshot(2, SAME, report().tasks))
    await world.until(lambda: world.adopted == [2])
    assert world.orchestrator.pins() == {2}


async def test_cut_while_the_one_before_is_being_adopted() -> None:
    """The next cut does not interrupt an adoption, nor take its files."""
    world, settling = await adopting_slowly()
    world.begin(2)
    assert world.orchestrator.local_state(1) is LocalState.DURABLE
    world.adopting.set()
    await settling
    assert world.adopted == [1]
    await world.until_durable(2)
    world.command(CompleteSnapshot(2, SAME, report().tasks))
    await world.until(lambda: world.adopted == [1, 2])
    assert world.files.deleted == []


async def test_deleted_from_the_log_while_it_is_being_adopted() -> None:
    """A slow adoption ends well although the log deletes the generation and cuts others: the
    superblock names its files, so they stay until a later one is adopted."""
    world, settling = await adopting_slowly()
    world.command(BeginSnapshot(2, 1, 0))
    world.command(CompleteSnapshot(2, SAME, report().tasks))
    assert 1 not in world.orchestrator.catalog
    world.begin(3)
    world.adopting.set()
    await settling
    await world.settle()
    assert world.adopted == [1]
    assert 1 not in world.files.deleted
    assert 1 in world.orchestrator.pins()


async def test_deadline_fails_what_has_no_majority() -> None:
    """A generation durable on the primary alone fails at its deadline, with its holders named."""
    world = await durable_primary()
    world.now_ms = SNAPSHOT_DEADLINE_MS
    await world.settle()
    (command,) = world.parsed_proposals()
    assert isinstance(command, FailSnapshot)
    assert "replicas (0,) have it; 2 equal ones are needed" in command.reason
    await world.until(lambda: world.states() == ["FAILED"])
    await world.settle()
    assert world.files.deleted == [1]


async def test_two_replicas_need_both() -> None:
    """Two replicas need both: a failed write on the primary fails the generation at once."""
    world = primary(reports=Reports(Roster.founding(0, 2)))
    world.files.full = "no room"
    world.begin(1)
    await world.until(lambda: world.states() == ["FAILED"])
    assert "no room" in world.machine.current().failure


async def test_diverged_backup_ends_and_names_the_section() -> None:
    """A replica whose root differs from the decided one ends, and names the differing section."""
    world = one_of_three(1)
    world.begin(1)
    await world.until_durable(1)
    world.command(CompleteSnapshot(1, OTHER, report(differs=Stage.STREAMS).tasks))
    with pytest.raises(DivergedError, match="the state of streams differs"):
        await world.settle()
    assert world.adopted == []
    # Otherwise nobody could name the section, because decided generations are not reported.
    assert [(durable.generation, durable.root) for durable in world.last_words] == [(1, SAME)]


async def test_primary_in_the_minority_ends_too() -> None:
    """The others' majority completes the generation with their root, and the primary ends."""
    world = await durable_primary()
    for replica in (1, 2):
        world.orchestrator.durable_elsewhere(replica, 1, report(OTHER, differs=Stage.USERS))
    await world.settle()
    world.sequence_proposals()
    assert world.machine.current().root == OTHER
    with pytest.raises(DivergedError, match="the state of users differs"):
        await world.settle()


async def test_nobody_agrees() -> None:
    """Once all have reported and no root has a majority, the primary ends instead of choosing."""
    world = await durable_primary()
    world.orchestrator.durable_elsewhere(1, 1, report(OTHER, differs=Stage.USERS))
    await world.settle()
    assert world.parsed_proposals() == []
    world.orchestrator.durable_elsewhere(2, 1, report(b"y" * 32, differs=Stage.CATALOG))
    with pytest.raises(DivergedError, match="the state of users and catalog differs"):
        await world.settle()


@pytest.mark.parametrize("is_late", [False, True])
async def test_alarm_about_a_diverged_replica(is_late: bool) -> None:
    """The primary raises an alarm about a replica in the minority, even if its report is late."""
    world = await durable_primary()
    diverged = report(OTHER, differs=Stage.SESSIONS)
    if not is_late:
        world.orchestrator.durable_elsewhere(2, 1, diverged)
    world.orchestrator.durable_elsewhere(1, 1, report())
    await world.until(lambda: world.states() == ["COMPLETED"])
    if is_late:
        assert world.diverged == []
        world.orchestrator.durable_elsewhere(2, 1, diverged)
    (alarm,) = world.diverged
    assert "replica 2 has diverged" in alarm
    assert "the state of sessions differs" in alarm


async def primary_of(roster: Roster) -> OrchestratorTrial:
    """Return the primary of these replicas, with generation 1 durable."""
    world = primary(reports=Reports(roster))
    world.begin(1)
    await world.until_durable(1)
    await world.settle()
    return world


@pytest.mark.parametrize(
    ("members", "proposes"),
    [
        (((0, 1, 2, 3, 4), ()), False),
        (((0, 1, 2, 3), ()), False),
        (((0, 2, 3), ()), False),
        (((0, 1, 2), ()), True),
        (((0,), (1,)), True),
    ],
)
async def test_members_change_between_cut_and_decision(
    members: tuple[tuple[int, ...], tuple[int, ...]], proposes: bool
) -> None:
    """The primary and replica 1, of five, complete a generation once they are a majority."""
    roster = Roster.founding(0, 5)
    world = await primary_of(roster)
    world.orchestrator.durable_elsewhere(1, 1, report())
    await world.settle()
    assert world.parsed_proposals() == []
    roster.enter(*members)
    await world.settle()
    assert [type(each) for each in world.parsed_proposals()] == [CompleteSnapshot] * proposes


@pytest.mark.parametrize("is_late", [False, True])
async def test_nobody_is_told_of_a_removed_replica(is_late: bool) -> None:
    """A replica that has diverged and was removed raises no alarm, whenever it was heard."""
    roster = Roster.founding(0, 3)
    world = await primary_of(roster)
    diverged = report(OTHER, differs=Stage.SESSIONS)
    if not is_late:
        world.orchestrator.durable_elsewhere(2, 1, diverged)
    roster.enter((0, 1), ())
    world.orchestrator.durable_elsewhere(1, 1, report())
    await world.until(lambda: world.states() == ["COMPLETED"])
    if is_late:
        world.orchestrator.durable_elsewhere(2, 1, diverged)
    assert world.diverged == []
