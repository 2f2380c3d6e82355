"""The share of time for work on a snapshot: all of it, or a tenth while commands come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.app.snapshots import is_urgent, traffic_of, waits_for_adoption
from coordinator.mux.catalog_types import CompleteSnapshot, Snapshot, SnapshotState
from coordinator.mux.stage import SERVICE_STAGES, STAGES
from coordinator.replica.batcher import Batcher, LooseCommand
from coordinator.replica.ports import Progress
from coordinator.snapshot.adoption import Adoption, AdoptionPorts
from coordinator.snapshot.decisions import LocalState
from coordinator.snapshot.pacing import (
    LISTEN_US,
    QUIET_US,
    REST_FACTOR,
    REST_US_MAX,
    REST_US_MIN,
    RESTS_PERCENT,
    PacingSituation,
    SnapshotPace,
    Traffic,
    rest_us,
)
from coordinator.snapshot.triggers import ReplicaLoad
from coordinator.snapshot.work import LocalWork
from testkit.generation_builders import Sections, entities, memory, open_files
from tests.coordinator.snapshot.orchestration.orchestra import (
    FakeFiles,
    OrchestratorTrial,
    Services,
    primary,
    tasks,
)
from viewstamp.limits import ITEM_LOG_CUT_BYTES

T = TypeVar("T")

IDLE = ReplicaLoad(now_ms=0, revision=0, journal_bytes=0, item_log_bytes=0)
LEFT_US = 10_000_000
BUSY = PacingSituation(is_busy=True, is_urgent=False, left_us=LEFT_US)


@dataclass
class PacingClock:
    """Time that passes during sleeps, and the commands that come meanwhile.

    One comes each `interval_us` until `ends_us`; None means no commands.
    """

    interval_us: int | None = 1_000
    ends_us: int = 10**12
    now_us: int = 0
    is_full_from_us: int = 10**12
    slept_us: list[int] = field(default_factory=list)

    async def sleep(self, us: int) -> None:
        """Let time pass, and let others run."""
        self.slept_us.append(us)
        self.now_us += us
        await asyncio.sleep(0)

    def applied(self) -> int:
        """Return the revision of the last command."""
        until_us = min(self.now_us, self.ends_us)
        return 0 if self.interval_us is None else until_us // self.interval_us

    def pace(self, deadline_ms: int = 120_000) -> SnapshotPace:
        """Return the pace of work beside these commands."""
        traffic = Traffic(self.applied, is_urgent=lambda: self.now_us >= self.is_full_from_us)
        return SnapshotPace(traffic, deadline_ms, lambda: self.now_us, self.sleep)


class Writer:
    """Calls at once."""

    async def call(self, function: Callable[[], T]) -> T:
        """Call it."""
        return function()


@pytest.mark.parametrize(
    ("step_us", "situation", "expected_us"),
    [
        (3_000, BUSY, 3_000 * REST_FACTOR),
        (0, BUSY, REST_US_MIN),
        (REST_US_MIN // REST_FACTOR - 1, BUSY, REST_US_MIN),
        (REST_US_MAX, BUSY, REST_US_MAX),
        (2_000, BUSY._replace(is_busy=False), 0),
        (2_000, BUSY._replace(is_urgent=True), 0),
        (2_000, BUSY._replace(is_busy=False, is_urgent=True), 0),
        (2_000, BUSY._replace(left_us=700), 700),
        (2_000, BUSY._replace(left_us=0), 0),
        (2_000, BUSY._replace(left_us=-1), 0),
    ],
)
def test_how_long_to_rest(step_us: int, situation: PacingSituation, expected_us: int) -> None:
    """A rest is a multiple of the step, within limits; it is zero if nobody benefits."""
    assert rest_us(step_us, situation) == expected_us


@given(
    st.integers(0, 10**8),
    st.integers(0, 10**8),
    st.builds(PacingSituation, st.booleans(), st.booleans(), st.integers(-(10**6), 10**8)),
)
def test_rests_have_bounds(step_us: int, other_us: int, situation: PacingSituation) -> None:
    """No rest exceeds its limit or what is left, and a longer step never has a shorter rest."""
    rest = rest_us(step_us, situation)
    assert 0 <= rest <= max(0, min(REST_US_MAX, situation.left_us))
    assert (rest <= rest_us(other_us, situation)) == (step_us <= other_us) or rest == rest_us(
        other_us, situation
    )
    if rest:
        assert situation.is_busy
        assert not situation.is_urgent


@given(st.lists(st.integers(0, REST_US_MAX // REST_FACTOR), min_size=1, max_size=30))
async def test_beside_commands_work_has_a_tenth_of_the_time(steps_us: list[int]) -> None:
    """Commands have nine tenths of the time, whatever the steps are."""
    clock = PacingClock(interval_us=100)
    pace = clock.pace()
    await pace.begin_generation()
    began_us, steps = clock.now_us, pace.begin()
    for step_us in steps_us:
        clock.now_us += step_us
        await steps.rest()
    assert sum(steps_us) * (1 + REST_FACTOR) <= clock.now_us - began_us
    assert len(steps_us) * REST_US_MIN <= clock.now_us - began_us


async def test_an_idle_replica_does_not_rest() -> None:
    """An idle replica loses no time beyond the moment of listening for commands."""
    clock = PacingClock(interval_us=None)
    pace = clock.pace()
    await pace.begin_generation()
    async with pace.turn() as steps:
        for _ in range(5):
            clock.now_us += 3_000
            await steps.rest()
    assert clock.slept_us == [LISTEN_US]


async def test_commands_that_wait_count() -> None:
    """Commands that wait, for example for a slow sync, count, too."""
    clock, waiting = PacingClock(interval_us=None), 1
    pace = SnapshotPace(
        Traffic(waiting=lambda: waiting), 120_000, lambda: clock.now_us, clock.sleep
    )
    await pace.begin_generation()
    steps = pace.begin()
    clock.now_us += 3_000
    await steps.rest()
    assert sum(clock.slept_us) == LISTEN_US + 3_000 * REST_FACTOR


async def test_a_rest_ends_with_the_commands() -> None:
    """A rest of a quarter of a second ends soon after the last command did."""
    clock = PacingClock(ends_us=50_000)
    pace = clock.pace()
    await pace.begin_generation()
    steps = pace.begin()
    clock.now_us += 40_000
    await steps.rest()
    assert 50_000 < clock.now_us <= 50_000 + 3 * QUIET_US


async def test_a_rest_ends_when_the_disk_is_full() -> None:
    """Work that frees the disk does not rest for commands that wait for space."""
    clock = PacingClock(is_full_from_us=60_000)
    pace = clock.pace()
    await pace.begin_generation()
    steps = pace.begin()
    clock.now_us += 40_000
    await steps.rest()
    assert 60_000 <= clock.now_us <= 60_000 + QUIET_US


async def test_rests_have_a_part_of_the_deadline() -> None:
    """Most of the deadline is for the steps, however many there are; the next one begins anew."""
    clock = PacingClock()
    pace = clock.pace(deadline_ms=1_000)
    for _ in range(2):
        await pace.begin_generation()
        steps, began_us = pace.begin(), clock.now_us
        for _ in range(1_000):
            clock.now_us += 1_000
            await steps.rest()
        rested_us = clock.now_us - began_us - 1_000 * 1_000
        assert rested_us == 1_000_000 * RESTS_PERCENT // 100


@pytest.mark.parametrize(("interval_us", "at_once"), [(None, 3), (1_000, 1)])
async def test_rows_take_turns_while_commands_come(interval_us: int | None, at_once: int) -> None:
    """Beside commands sections are written one after another, never all at the same time."""
    pace = PacingClock(interval_us).pace()
    await pace.begin_generation()
    under_way: list[int] = []
    most = 0

    async def work(number: int) -> None:
        nonlocal most
        async with pace.turn() as steps:
            under_way.append(number)
            most = max(most, len(under_way))
            await asyncio.sleep(0)
            await steps.rest()
            under_way.remove(number)

    await asyncio.gather(*map(work, range(3)))
    assert most == at_once


async def test_a_generation_beside_commands() -> None:
    """Sections come one after another, with a rest after each step, and add up to the same."""
    clock, services, files = PacingClock(), Services(), FakeFiles()
    world = primary(work=LocalWork(services, files, services.wait, clock.pace()), files=files)
    assert await world.snapshot() == 1
    assert [stage for stage, _ in services.reads] == list(STAGES)
    # The beginning and the manifest; of each section its block, its end, and its layer.
    assert sum(clock.slept_us) == LISTEN_US + (2 + 3 * len(STAGES)) * REST_US_MIN
    assert world.states() == ["COMPLETED"]
    await world.close()


async def test_a_generation_that_is_abandoned_in_a_rest() -> None:
    """A cut that comes while sections rest frees what is held of them, and completes."""
    clock, services, files = PacingClock(), Services(), FakeFiles()
    resting, is_stuck = asyncio.Event(), True

    async def sleep(us: int) -> None:
        await clock.sleep(us)
        if us != LISTEN_US and files.blocks and is_stuck:
            resting.set()
            await asyncio.Event().wait()

    pace = SnapshotPace(Traffic(clock.applied), 120_000, lambda: clock.now_us, sleep)
    world = OrchestratorTrial(work=LocalWork(services, files, services.wait, pace), files=files)
    world.begin(1)
    await world.settle()
    await resting.wait()
    is_stuck = False
    world.command(CompleteSnapshot(1, b"r" * 32, tasks()))  # the others were faster
    world.begin(2)
    await world.until_durable(2)
    assert files.discarded == [(1, STAGES[0])]
    assert (files.deleted, files.written) == ([1], [2])


@pytest.mark.parametrize("interval_us", [None, 1_000])
async def test_an_adoption_rests_behind_each_step(interval_us: int | None) -> None:
    """An adoption has the same order with rests, and one rest after each step."""
    clock, done = PacingClock(interval_us), list[str]()
    files = open_files(memory())
    sections = Sections(files)
    sections.write(1, entities(1, 3))

    async def sleep(us: int) -> None:
        await clock.sleep(us)
        done.append("rest")

    def do(step: str) -> int:
        clock.now_us += 3_000
        done.append(step)
        return 0

    def record(generation: int, cut_op: int) -> None:
        do("record")

    async def freed() -> None:
        do("freed")

    ports = AdoptionPorts(
        writer=Writer(),
        record=record,
        truncate=lambda _: do("truncate"),
        services=dict.fromkeys(SERVICE_STAGES, SimpleNamespace(move_base=lambda base: None)),
        release=lambda _: None,
        kept=lambda: {1},
        copied=lambda *_: None,
        freed=freed,
        start=lambda work: work.close(),
        pace=SnapshotPace(Traffic(clock.applied), 120_000, lambda: clock.now_us, sleep),
    )
    adoption = Adoption(files, ports)
    await adoption.replayed()
    done.clear()
    await adoption.adopt(1)
    assert [each for each in done if each != "rest"] == ["record", "truncate", "freed"]
    short, long = 2, 3  # steps: releasing, the reserve and these three take no time
    rested_us = short * REST_US_MIN + long * 3_000 * REST_FACTOR
    assert sum(clock.slept_us) == (0 if interval_us is None else rested_us)
    files.close()


@pytest.mark.parametrize(
    ("state", "local", "load", "expected"),
    [
        (SnapshotState.CREATED, LocalState.FROZEN, IDLE, False),
        (SnapshotState.COMPLETED, LocalState.DURABLE, IDLE, False),
        (SnapshotState.COMPLETED, LocalState.FROZEN, IDLE, True),
        (SnapshotState.CREATED, LocalState.FROZEN, replace(IDLE, is_disk_full=True), True),
        (SnapshotState.COMPLETED, LocalState.DURABLE, replace(IDLE, is_disk_full=True), True),
        (None, LocalState.NOTHING, replace(IDLE, item_log_bytes=ITEM_LOG_CUT_BYTES + 1), True),
        (None, LocalState.NOTHING, replace(IDLE, item_log_bytes=ITEM_LOG_CUT_BYTES), False),
    ],
)
def test_what_is_urgent(
    state: SnapshotState | None, local: LocalState, load: ReplicaLoad, expected: bool
) -> None:
    """Space, memory, and a generation that others have completed while it is written here are
    urgent."""
    older = Snapshot(4, SnapshotState.COMPLETED)
    catalog = {4: older} if state is None else {4: older, 5: Snapshot(5, state)}
    states = {4: LocalState.DURABLE, 5: local}
    assert is_urgent(load, catalog, states.__getitem__) is expected
    assert not is_urgent(IDLE, {}, states.__getitem__)


def test_what_commands_do_is_told() -> None:
    """Prepares under way and waiting requests count as commands, and so does a full disk."""

    progress, batcher, full = Progress(), Batcher(), list[bool]()
    traffic = traffic_of(progress, batcher, lambda: bool(full))
    assert (traffic.applied(), traffic.waiting(), traffic.is_urgent()) == (0, 0, False)
    progress.op, progress.applied_op, progress.applied_revision = 9, 7, 30
    loop = asyncio.new_event_loop()
    batcher.add(LooseCommand(1, b"", 1, 0, "", loop.create_future()))
    loop.close()
    full.append(True)
    assert (traffic.applied(), traffic.waiting(), traffic.is_urgent()) == (30, 3, True)


@pytest.mark.parametrize(
    ("states", "here", "adopted", "expected"),
    [
        ({}, {}, 0, False),
        ({1: SnapshotState.CREATED}, {1: LocalState.FROZEN}, 0, False),
        ({1: SnapshotState.COMPLETED}, {1: LocalState.FROZEN}, 0, True),
        ({1: SnapshotState.COMPLETED}, {1: LocalState.BROKEN}, 0, True),
        ({1: SnapshotState.COMPLETED}, {1: LocalState.DURABLE}, 0, True),
        ({1: SnapshotState.COMPLETED}, {1: LocalState.DURABLE}, 1, False),
        ({1: SnapshotState.COMPLETED}, {}, 0, False),
        ({1: SnapshotState.COMPLETED, 2: SnapshotState.FAILED}, {}, 0, False),
        (
            {1: SnapshotState.COMPLETED, 2: SnapshotState.CREATED},
            {1: LocalState.DURABLE, 2: LocalState.FROZEN},
            1,
            False,
        ),
        (
            {1: SnapshotState.COMPLETED, 2: SnapshotState.COMPLETED},
            {1: LocalState.DURABLE, 2: LocalState.BROKEN},
            1,
            True,
        ),
    ],
)
def test_a_ring_waits_for_what_the_cluster_has_completed(
    states: dict[int, SnapshotState], here: dict[int, LocalState], adopted: int, expected: bool
) -> None:
    """A primary that still writes the last completed generation, or is about to adopt it, begins no
    other one for the sake of its ring; one that has abandoned it does."""
    catalog = {at: Snapshot(at, state) for at, state in states.items()}

    def local_state(generation: int) -> LocalState:
        return here.get(generation, LocalState.NOTHING)

    assert waits_for_adoption(catalog, adopted, local_state) == expected
