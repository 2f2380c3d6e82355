"""Kills during a cut: they fall where they should, and those that come too late are repeated."""

from __future__ import annotations

import asyncio
import random
from typing import cast

import pytest

from testkit.load import kills
from testkit.load.cuts import CutKill, Moment, SnapshotRequests, moment_of, wall_clock_us
from testkit.load.generator import LoadGenerator, Restoration
from testkit.load.kills import (
    CUT_ATTEMPTS_MAX,
    IN_FLIGHT_MIN,
    PlannedKill,
    ProcessKill,
    check_kills,
    kill_during_cut,
)
from testkit.load.oracle import Check
from testkit.load.session import LoadFailed, LoadRequest
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.errors import Refusal

NEVER_S = 3600.0
LATER_US = 10**16  # in the year 2286
CREATED, COMPLETED = (
    snapshots_pb2.SNAPSHOT_STATE_CREATED,
    snapshots_pb2.SNAPSHOT_STATE_COMPLETED,
)


class KilledCluster:
    """Snapshots that are decided as the test says, and processes that restart at once.

    With `waits_for_kills` nothing is decided before a process was killed.
    """

    def __init__(self, decided_at: list[int], *, waits_for_kills: bool = False) -> None:
        self.waits_for_kills = waits_for_kills
        self.created_at = 1
        self.decided_at = decided_at
        self.killed: list[str] = []
        self.refusals: list[Reason.ValueType] = []
        self.last_generation = 0
        self.begun_by_itself = False
        self.in_flight = IN_FLIGHT_MIN
        self.may_decide = asyncio.Event()
        self.may_decide.set()

    async def create(self) -> snapshots_pb2.CreateSnapshotResponse:
        """Begin the next generation, unless a refusal is due."""
        await asyncio.sleep(0)
        if self.refusals:
            self.begun_by_itself = True
            raise Refusal(self.refusals.pop(), "as the test wants it")
        self.last_generation += 1
        if self.waits_for_kills:
            self.may_decide.clear()
        return snapshots_pb2.CreateSnapshotResponse(generation=self.last_generation)

    async def current(self, *, consistency: Consistency = LINEARIZABLE) -> snapshots_pb2.Snapshot:
        """Return the last generation; after a refusal, the cluster began one by itself."""
        await asyncio.sleep(0)
        if self.begun_by_itself:
            self.begun_by_itself = False
            self.last_generation += 1
        return snapshots_pb2.Snapshot(
            generation=self.last_generation, state=CREATED, created_at=self.created_at
        )

    async def decided(self, generation: int) -> snapshots_pb2.Snapshot:
        """Return a generation, with the next time from the test's list."""
        await self.may_decide.wait()
        decided_at = self.decided_at.pop(0) if self.decided_at else LATER_US
        return snapshots_pb2.Snapshot(
            generation=generation,
            state=COMPLETED,
            created_at=self.created_at,
            decided_at=decided_at,
        )

    def kill(self, name: str) -> None:
        """Record the kill."""
        self.killed.append(name)
        self.may_decide.set()

    async def wait_ready(self, timeout_s: float) -> None:
        """Do nothing: every process is ready."""

    def unanswered(self) -> set[LoadRequest]:
        """Do nothing: no connection is open."""
        return set()

    async def until_restored(self, killed_ns: int, unanswered: set[LoadRequest]) -> Restoration:
        """Return no time at all."""
        return Restoration(1, 2)


@pytest.mark.parametrize(
    ("created_at", "decided_at", "moment"),
    [
        (0, 90, Moment.ASKED),
        (60, 90, Moment.ASKED),
        (50, 90, Moment.CUT),
        (10, 51, Moment.CUT),
        (10, 50, Moment.DECIDED),
        (10, 20, Moment.DECIDED),
        (0, 20, Moment.DECIDED),
    ],
)
def test_log_times_say_where_a_kill_fell(created_at: int, decided_at: int, moment: Moment) -> None:
    """A kill at 50 falls before the cut, before the decision, or after it."""
    snapshot = snapshots_pb2.Snapshot(created_at=created_at, decided_at=decided_at)
    assert moment_of(50, snapshot) is moment


async def test_a_kill_that_comes_too_late_is_made_again() -> None:
    """Attempts after the decision do not count; the first attempt before it is the last."""
    cluster = KilledCluster([1, 1], waits_for_kills=True)
    requests = SnapshotRequests(cluster, NEVER_S)
    requests.start()
    kills = await kill_during_cut(
        cluster, cast(LoadGenerator, cluster), requests, "users", random.Random(1)
    )
    await requests.cancel()

    assert [kill.counts for kill in kills] == [False, False, True]
    assert cluster.killed == ["users"] * 3
    assert [kill.cut for kill in kills] == [
        CutKill(1, Moment.DECIDED, "COMPLETED"),
        CutKill(2, Moment.DECIDED, "COMPLETED"),
        CutKill(3, Moment.CUT, "COMPLETED"),
    ]


async def test_kills_that_are_always_too_late_end() -> None:
    """After that many attempts the trial gives up, and none of them counts."""
    cluster = KilledCluster([1] * CUT_ATTEMPTS_MAX, waits_for_kills=True)
    requests = SnapshotRequests(cluster, NEVER_S)
    requests.start()
    kills = await kill_during_cut(
        cluster, cast(LoadGenerator, cluster), requests, "users", random.Random(1)
    )
    await requests.cancel()

    assert len(kills) == CUT_ATTEMPTS_MAX
    assert not any(kill.counts for kill in kills)


async def test_nothing_is_killed_once_the_decision_is_known() -> None:
    """The trial leaves a snapshot alone that was decided while the kill was prepared."""
    cluster = KilledCluster([1] * 2 * CUT_ATTEMPTS_MAX)
    requests = SnapshotRequests(cluster, NEVER_S)
    requests.start()
    kills = await kill_during_cut(
        cluster, cast(LoadGenerator, cluster), requests, "users", random.Random(1)
    )
    await requests.finish()

    assert kills == []
    assert cluster.killed == []
    assert cluster.last_generation >= CUT_ATTEMPTS_MAX


async def test_asking_waits_for_what_the_cluster_began() -> None:
    """A refusal because a snapshot is under way is no failure: the trial's own comes after it."""
    cluster = KilledCluster([])
    cluster.refusals = [Reason.REASON_SNAPSHOT_IN_PROGRESS]
    requests = SnapshotRequests(cluster, NEVER_S)
    requests.start()
    asked = await requests.next_asked()

    assert (await asked.decided).generation == 2
    await requests.finish()
    assert requests.generations == {2}


async def test_finishing_waits_for_the_decision() -> None:
    """A snapshot that the trial asked for is decided before the trial ends."""
    cluster = KilledCluster([])
    cluster.may_decide.clear()
    requests = SnapshotRequests(cluster, NEVER_S)
    requests.start()
    asked = await requests.next_asked()
    finishing = asyncio.create_task(requests.finish())
    await asyncio.sleep(0)
    assert not finishing.done()
    cluster.may_decide.set()
    await finishing
    assert asked.decided.done()


async def test_a_refusal_for_good_ends_it_for_everybody() -> None:
    """The error reaches whoever waits for the request, its decision or the end."""
    cluster = KilledCluster([])
    cluster.refusals = [Reason.REASON_PERMISSION_DENIED]
    requests = SnapshotRequests(cluster, NEVER_S)
    requests.start()
    asked = await requests.next_asked()

    with pytest.raises(LoadFailed, match="as the test wants it"):
        await asked.decided
    with pytest.raises(Refusal):
        await requests.finish()
    with pytest.raises(Refusal):
        await requests.next_asked()


async def test_only_undisturbed_snapshots_say_how_long_one_takes() -> None:
    """A kill during a snapshot does not make the next kill wait longer."""
    cluster = KilledCluster([])
    cluster.may_decide.clear()
    requests = SnapshotRequests(cluster, NEVER_S)
    requests.start()
    before_s = requests.duration_s
    asked = await requests.next_asked()
    asked.is_disturbed = True
    cluster.may_decide.set()
    await asked.decided
    assert requests.duration_s == before_s
    cluster.created_at = wall_clock_us() + 5_000_000
    cluster.decided_at = [cluster.created_at + 5_000_000]
    await (await requests.next_asked()).decided
    await requests.finish()
    assert requests.duration_s == pytest.approx(5)


def kill(process: str, moment: Moment | None = None) -> ProcessKill:
    """Return a kill under enough load."""
    cut = None if moment is None else CutKill(7, moment, "COMPLETED")
    return ProcessKill(process, IN_FLIGHT_MIN, 1, 1, cut)


@pytest.mark.parametrize(
    ("kills", "is_seen"),
    [
        ([kill("users"), kill("users", Moment.CUT)], False),
        ([kill("users"), kill("users", Moment.DECIDED), kill("users", Moment.CUT)], False),
        ([kill("users"), kill("users", Moment.ASKED), kill("users", Moment.CUT)], False),
        ([kill("users"), kill("users", Moment.ASKED)], True),
        ([kill("users", Moment.CUT), kill("users")], True),
        ([kill("users"), kill("users", Moment.DECIDED)], True),
        ([kill("users"), kill("users")], True),
        ([kill("users"), kill("streams", Moment.CUT)], True),
        ([kill("users", Moment.CUT)], True),
    ],
)
def test_kills_during_a_cut_must_be_that(kills: list[ProcessKill], is_seen: bool) -> None:
    """A kill before or after the cut counts as a death, but not as a kill during a cut."""
    wanted = [PlannedKill("users"), PlannedKill("users", during_cut=True)]
    restarts = {name: sum(one.process == name for one in kills) for name in ("users", "streams")}
    found = {violation.check for violation in check_kills(wanted, kills, restarts)}

    assert found == ({Check.KILLS} if is_seen else set())


async def test_a_snapshot_that_is_never_decided_ends_the_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kill after which nothing is decided says which process was killed."""
    monkeypatch.setattr(kills, "SILENCE_MAX_S", 0.05)
    cluster = KilledCluster([], waits_for_kills=True)
    monkeypatch.setattr(cluster, "kill", cluster.killed.append)
    requests = SnapshotRequests(cluster, NEVER_S)
    requests.start()
    with pytest.raises(LoadFailed, match="streams was killed during a cut: nothing was decided"):
        await kill_during_cut(
            cluster, cast(LoadGenerator, cluster), requests, "streams", random.Random(1)
        )
    await requests.cancel()
