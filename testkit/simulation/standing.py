"""How one replica stands: what the others say, whether it is fit to lead, and what it has room for.

The rules are those of the product (`SnapshotReports`, `ClusterTime`, `Fitness`,
`AppendBackpressure`, `SpaceWatch`, `LogRetention`). Here is only what calls them, in simulated
time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from coordinator import vsr
from coordinator.app.cluster_time import ClusterTime
from coordinator.app.digest_claims import ClaimAlarms, DigestClaims
from coordinator.app.reports import NO_VOTE, REPORT_INTERVAL_MS, SnapshotReports
from coordinator.peers.messages import ReplicaReportMessage
from coordinator.replica.append_backpressure import AppendBackpressure
from coordinator.replica.cluster_clock import ClusterClock, OwnClock
from coordinator.replica.fitness import LOOK_INTERVAL_MS, Fitness, FitnessPorts, Seen
from coordinator.snapshot.divergence import DivergedError
from coordinator.snapshot.log_retention import LOOK_INTERVAL_MS as RETENTION_INTERVAL_MS
from coordinator.snapshot.log_retention import NONE_AT_ALL, LogRetention, RetentionRoom
from testkit.checkers.checker import Broken
from testkit.simulation.space import SimulatedSpace
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.limits import TICK_MS

if TYPE_CHECKING:
    from testkit.simulation.process import Process

STATUSES: Final = {
    status: cluster_pb2.ReplicaStatus.Value(f"REPLICA_STATUS_{status.name}")
    for status in vsr.ReplicaStatus
}


def is_about_snapshots(prepare: vsr.Prepare) -> bool:
    """No entry is about snapshots here, so none may use the space that is reserved for them."""
    return False


class Standing:
    """Beside one process."""

    def __init__(self, process: Process) -> None:
        machine, world = process.machine, process.machine.world
        self._process = process
        self._world = world
        count = world.options.replica_count
        self._others = [i for i in range(world.options.machine_count) if i != machine.index]
        self._reports = SnapshotReports(self._others, count, self._now_ms)
        own = OwnClock(machine.wall_clock_us, machine.monotonic_us)
        self.clock = ClusterClock(own, machine.index, count)
        self._time = ClusterTime(self.clock, self)
        self._claims = DigestClaims(
            process.application.applied_digests,
            machine.index,
            count,
            self._others,
            ClaimAlarms(self._differs, lambda replica: world.marks.hit("replicas agree again")),
        )
        self.space = SimulatedSpace(
            process.files.journal, self._became_full, process.pump, process.later
        )
        self.entries = AppendBackpressure(
            process.core,
            process.step,
            is_about_snapshots,
            self.space.room,
            lambda: self._now_ms() // TICK_MS,
        )
        ports = FitnessPorts(
            self._look, self._tell, lambda reason: None, lambda reason: None, self._now_ms
        )
        self._fitness = Fitness(ports)
        self._retention = LogRetention(process.files.journal, self._reports.followers, self._waits)

    def begin(self) -> None:
        """Report, and look at what there is, for as long as the process runs."""
        if self._others:
            self._report()
            self._look_again()
        self._process.later(RETENTION_INTERVAL_MS, self._drop_what_was_kept)

    def _now_ms(self) -> int:
        return self._world.schedule.now_ms

    # --- What the others say ---

    def received(self, message: Any) -> None:
        """Take a message of another replica."""
        if not isinstance(message, ReplicaReportMessage):
            self.entries.received(message)
            self.space.make_if_due()
        elif message.cluster_id == self._world.cluster_id and message.from_replica in self._others:
            # The product's streams are of one sender each, who has said which cluster it is of.
            self._reports.heard(message)
            self._time.heard(message.from_replica, message.clock_us)
            self._compare(lambda: self._claims.heard(message))

    def applied(self, op: int) -> None:
        """Compare what this replica came to with what others told of it."""
        self._compare(lambda: self._claims.applied(op))

    def _compare(self, compare: Callable[[], None]) -> None:
        try:
            compare()
        except DivergedError as error:
            self._world.marks.hit("contradicted by a majority")
            self._process.halt(str(error))

    def _differs(self, replica: int, why: str) -> None:
        """Take the alarm that another replica and this one differ: one of them was changed."""
        self._world.marks.hit("replicas differ")
        if not self._world.generations.diverged & {replica, self._process.machine.index}:
            raise Broken("AnswersAgree", why)

    def _report(self) -> None:
        core = self._process.core
        applied_digest, common_op, common_digest = self._claims.own(core.marks.applied_op)
        report = ReplicaReportMessage(
            cluster_id=self._world.cluster_id,
            from_replica=self._process.machine.index,
            status=STATUSES[core.status],
            view=core.view,
            op=core.marks.op,
            commit=core.marks.commit_min,
            applied=core.marks.applied_op,
            generation=self._process.snapshots.adopted,
            client_address="",
            unfit=self._fitness.reason or self._lack_of_vote(),
            clock_us=self._time.own_us(),
            applied_digest=applied_digest,
            common_op=common_op,
            common_digest=common_digest,
        )
        for replica in self._others:
            self._world.network.send_report(report.from_replica, replica, report)
        self._process.later(REPORT_INTERVAL_MS, self._report)

    def _lack_of_vote(self) -> str:
        core = self._process.core
        return "" if core.is_standby or core.is_voter else NO_VOTE

    # --- Fit to lead ---

    def _look_again(self) -> None:
        self._fitness.look()
        self._process.later(LOOK_INTERVAL_MS, self._look_again)

    def _look(self) -> Seen:
        marks = self._process.core.marks
        return Seen(
            committed_op=marks.commit_min,
            applied_op=marks.applied_op,
            services={},
            is_full=self.space.full,
            is_writing=not self._process.writer.is_idle,
            writes_done=self._process.writer.writes_done,
            has_fit_peer=self._reports.has_fit_peer(),
            clock=self._time.look(self._process.core.log_time_us),
        )

    def _tell(self, event: vsr.Event) -> None:
        self._world.marks.hit(f"told {type(event).__name__.lower()}")
        self._process.step(event)

    # --- Alarms about clocks ---

    def tell(self, kind: cluster_pb2.AlarmKind.ValueType, message: str) -> None:
        """Count an alarm."""
        self._world.marks.hit(f"alarm {cluster_pb2.AlarmKind.Name(kind)}")

    def clear(self, kind: cluster_pb2.AlarmKind.ValueType) -> None:
        """Do nothing: alarms are only counted."""

    # --- Room ---

    def may_send(self, effect: vsr.Send) -> bool:
        """Whether a message is to be sent: hardly ever one for what there is no room for."""
        return self.entries.may_send(effect)

    def _became_full(self, why: str) -> None:
        self._world.trace.note(self._process.machine.name, "full", why)
        self._world.marks.hit("no space for a segment")

    # --- What is kept for those that lag ---

    def truncate_before(self, op: int) -> None:
        """Truncate the journal, in its turn, as far as no snapshot and no replica needs it."""
        self._retention.truncate_before(op)
        self._world.marks.hit("journal kept for others", int(self._retention.is_kept))

    def _waits(self) -> RetentionRoom:
        options = self._world.options
        return (
            NONE_AT_ALL
            if self.space.full
            else RetentionRoom(options.retain_ms, options.retain_bytes)
        )

    def _drop_what_was_kept(self) -> None:
        if self._retention.is_kept:
            self._process.background("truncate", self._retention.truncate, lambda _: None)
        self._process.later(RETENTION_INTERVAL_MS, self._drop_what_was_kept)
