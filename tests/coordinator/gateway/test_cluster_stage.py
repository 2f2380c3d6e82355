"""The catalog stage: status and alarms, refused one by one and never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from coordinator.base.alarms import Alarms
from coordinator.base.roster import Roster
from coordinator.gateway.cluster import ClusterStage, StatusSources
from coordinator.mux import types as mux
from coordinator.replica.batcher import AnsweredSpan, Reply
from coordinator.replica.ports import Progress
from coordinator.vsr import ReplicaStatus
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.framing import frame, frame_all, unframe

GET_STATUS, LIST_ALARMS = 450, 451
PLAIN, DIGESTS, BAD = b"", b"\x18\x01", b"\xff"


class ReportedService:
    """A service that is there."""

    connected = True
    restarts = 2
    item_log_bytes = 10


class ReportedReplica:
    """A replica whose reads the test answers."""

    def __init__(self) -> None:
        """Begin in normal status."""
        self.progress = Progress(op=5, committed_op=4, applied_op=3, status=ReplicaStatus.NORMAL)
        self.reads: list[asyncio.Future[Reply]] = []
        self.followed: list[mux.QueryOutcome] = []

    @property
    def ports(self) -> tuple[Progress, ReportedReplica, Callable[[mux.QueryOutcome], None]]:
        """Return what the stage learns of the replica."""
        return self.progress, self, self.followed.append

    def next_token(self) -> int:
        """Return a token."""
        return len(self.reads)

    def start(self, read: mux.Read, *, linearizable: bool, revision: int) -> asyncio.Future[Reply]:
        """Start a read that the test answers."""
        assert [span.owner for span in read.spans] == list(mux.SERVICE_STAGES)
        self.reads.append(asyncio.get_running_loop().create_future())
        return self.reads[-1]


class ClusterStageTrial:
    """A catalog stage over fakes, with one alarm."""

    def __init__(
        self,
        sources: StatusSources | None = None,
        others: Iterable[cluster.Replica] = (),
        roster: Roster | None = None,
    ) -> None:
        """Raise an alarm."""
        self.replica = ReportedReplica()
        alarms = Alarms(lambda: 7)
        alarms.raise_alarm(cluster.ALARM_KIND_SERVICE_DOWN, "gone", "users")
        self.services: dict[mux.Stage, Any] = {
            stage: ReportedService() for stage in mux.SERVICE_STAGES
        }
        self.stage = ClusterStage(
            *self.replica.ports,
            alarms,
            self.services,
            lambda: 6,
            lambda: [(1, b"k", b"v")],
            roster or Roster.founding(0, 1),
            bytes(16),
            lambda: others,
            sources=sources,
        )

    def ask(self, code: int, *items: bytes, refused: tuple[int, ...] = ()) -> mux.QueryOutcome:
        """Read, with some indexes refused before."""
        item = mux.QueryItem(1, code, len(items), frame_all(items), 0, 1, 0, refused, b"")
        (outcome,) = self.stage.read(mux.StageBatch(mux.Stage.CATALOG, 0, 3, 1, (item,))).outcomes
        assert isinstance(outcome, mux.QueryOutcome)
        return outcome


def statuses(outcome: mux.QueryOutcome) -> list[cluster.GetStatusResponse]:
    """Decode the results."""
    return list(map(cluster.GetStatusResponse.FromString, unframe(outcome.results)))


async def test_refused_ones_stay_refused_by_whoever_did_it() -> None:
    """An index that was refused before is neither answered nor refused again."""
    outcome = ClusterStageTrial().ask(GET_STATUS, BAD, PLAIN, BAD, refused=(0,))
    assert [error.index for error in outcome.errors] == [2]
    assert [bool(result.cluster) for result in statuses(outcome)] == [False, True, False]


async def test_levels() -> None:
    """Status names the level in force, and beside it the level that a replica supports."""
    world = ClusterStageTrial(StatusSources(level_in_force=lambda: 1, level_supported=lambda: 3))
    (status,) = statuses(world.ask(GET_STATUS, PLAIN))
    assert status.feature_level == 1
    assert status.replicas[0].feature_level_max == 3


async def test_malformed_span() -> None:
    """Bytes that are not frames, or too many or few frames, refuse all that was not refused yet."""
    world = ClusterStageTrial()
    for items, count in ((b"\xff", 3), (frame(b""), 3)):
        item = mux.QueryItem(1, LIST_ALARMS, count, items, 0, 1, 0, (1,), b"")
        batch = mux.StageBatch(mux.Stage.CATALOG, 0, 3, 1, (item,))
        (outcome,) = world.stage.read(batch).outcomes
        assert isinstance(outcome, mux.QueryOutcome)
        assert [error.index for error in outcome.errors] == [0, 2]


@pytest.mark.parametrize(
    ("primary", "roles"),
    [
        (0, "PRIMARY BACKUP BACKUP STANDBY"),
        (2, "BACKUP BACKUP PRIMARY STANDBY"),
    ],
)
async def test_roles_and_lag(primary: int, roles: str) -> None:
    """Each replica has its role, and its lag behind the highest commit that any replica reports."""
    others = [cluster.Replica(replica_id=i, commit=10 + i, applied=9 + i) for i in (3, 1, 2)]
    world = ClusterStageTrial(others=others, roster=Roster.founding(0, 3, 1))
    world.replica.progress.primary = primary

    (status,) = statuses(world.ask(GET_STATUS, PLAIN))

    names = [cluster.ReplicaRole.Name(each.role) for each in status.replicas]
    assert [each.replica_id for each in status.replicas] == [0, 1, 2, 3]
    assert names == [f"REPLICA_ROLE_{role}" for role in roles.split()]
    applied = world.replica.progress.applied_op
    assert [each.lag for each in status.replicas] == [13 - applied, 3, 2, 1]


@pytest.mark.parametrize(
    ("members", "primary", "roles"),
    [
        (((0, 1, 2), (3,)), 0, "PRIMARY BACKUP BACKUP STANDBY"),
        (((0, 1, 2, 3), ()), 3, "BACKUP BACKUP BACKUP PRIMARY"),
        (((0, 2, 3), ()), 2, "BACKUP UNSPECIFIED PRIMARY BACKUP"),
        (((3, 1), (0, 2)), 1, "STANDBY PRIMARY STANDBY BACKUP"),
        (((1, 3), ()), 1, "UNSPECIFIED PRIMARY UNSPECIFIED BACKUP"),
        (((0,), (2, 3)), 0, "PRIMARY UNSPECIFIED STANDBY STANDBY"),
    ],
)
async def test_roles_of_the_moment(
    members: tuple[tuple[int, ...], tuple[int, ...]], primary: int, roles: str
) -> None:
    """Roles follow the members of the epoch, and not the numbers of replicas; who was removed has
    none."""
    roster = Roster.founding(0, 3, 1)
    others = [cluster.Replica(replica_id=each) for each in (1, 2, 3)]
    world = ClusterStageTrial(others=others, roster=roster)
    world.replica.progress.primary = primary
    roster.enter(*members)
    (status,) = statuses(world.ask(GET_STATUS, PLAIN))
    names = [cluster.ReplicaRole.Name(each.role) for each in status.replicas]
    assert names == [f"REPLICA_ROLE_{role}" for role in roles.split()]


@pytest.mark.parametrize("status", list(ReplicaStatus))
async def test_each_status_has_a_name_for_clients(status: ReplicaStatus) -> None:
    """Whatever the core calls its status, clients and other replicas are told the same."""
    world = ClusterStageTrial()
    world.replica.progress.status = status
    (found,) = statuses(world.ask(GET_STATUS, PLAIN))
    name = cluster.ReplicaStatus.Name(found.replicas[0].status)
    assert name == f"REPLICA_STATUS_{status.name}"


async def test_alarms() -> None:
    """Raised alarms are listed."""
    (encoded,) = unframe(ClusterStageTrial().ask(LIST_ALARMS, PLAIN).results)
    (alarm,) = cluster.ListAlarmsResponse.FromString(encoded).alarms
    assert (alarm.kind, alarm.since) == (cluster.ALARM_KIND_SERVICE_DOWN, 7)


async def test_digests_follow() -> None:
    """Digests are read from every stage, and the answer follows with their refusals."""
    world = ClusterStageTrial()
    assert world.ask(GET_STATUS, DIGESTS, BAD, PLAIN, refused=(2,)).deferred
    spans = tuple(AnsweredSpan(frame(bytes((n,)) * 32), ()) for n in range(len(mux.SERVICE_STAGES)))
    world.replica.reads[0].set_result(Reply(1, 3, 3, spans))
    await asyncio.sleep(0)
    (outcome,) = world.replica.followed
    status = statuses(outcome)[0]
    digests = [service.state_digest[:2] for service in status.services]
    assert digests == [f"{n:02}" for n in range(len(mux.SERVICE_STAGES))]
    assert len(status.sessions_digest) == 64
    assert [error.index for error in outcome.errors] == [1]


@pytest.mark.parametrize("refused", [(), (2,)])
async def test_digests_that_cannot_be_read(refused: tuple[int, ...]) -> None:
    """When a service is down, every read not refused yet is refused with that reason."""
    world = ClusterStageTrial()
    assert world.ask(GET_STATUS, DIGESTS, BAD, PLAIN, refused=refused).deferred
    world.replica.reads[0].set_exception(Refusal(Reason.REASON_DOMAIN_RESTARTING, "gone"))
    await asyncio.sleep(0)
    (outcome,) = world.replica.followed
    reasons = {e.index: errors_pb2.Error.FromString(e.error).reason for e in outcome.errors}
    assert reasons[0] == Reason.REASON_DOMAIN_RESTARTING
    assert reasons[1] == Reason.REASON_MALFORMED_REQUEST
    assert sorted(reasons) == [index for index in range(3) if index not in refused]
