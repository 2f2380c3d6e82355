"""One run: a cluster of the real programs, clients of the real library, faults, and judges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Final, Protocol
from unittest import mock

from coordinator.replica import batcher
from testkit.checkers.checker import Broken
from testkit.oracles import history, wing_gong, witness
from testkit.world import operator_acts, wanderer_acts
from testkit.world.branches import REFUSED, Branches
from testkit.world.clients import Access, Clients
from testkit.world.faults import Faults
from testkit.world.file_troubles import FileTroubles
from testkit.world.ground import Ground, victims_of
from testkit.world.mail import Mail
from testkit.world.member_book import MemberBook
from testkit.world.members import Members
from testkit.world.narrow_watchers import NarrowWatchers
from testkit.world.observer import CLOCK_AHEAD_US_MAX, Observer
from testkit.world.options import WorldOptions
from testkit.world.process import WorldProcess
from testkit.world.renewals import Renewals
from testkit.world.replica import CLUSTER_ID, WorldReplica
from testkit.world.rude_peers import RudePeers
from testkit.world.schedule import NS_PER_S
from testkit.world.scrub_judge import judge_scrubbers
from testkit.world.steward import Stewards, planned_addresses
from testkit.world.strangers import Strangers
from testkit.world.surroundings import RunSurroundings
from testkit.world.wanderers import OPERATOR, WANDERER, Wanderers
from testkit.world.watchers import Watchers, told_changes
from testkit.world.workload import READS, REGISTER, Demands, Heard, prepare, unseen_alike
from testkit.world.world import Defect, World
from testkit.world.world_brokers import WorldBrokers
from testkit.world.wrong_starts import WrongStarts
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoint, unary
from viewstamp.limits import ROOT_USERNAME

_START_LIMIT_NS: Final = 60 * NS_PER_S
# How long a healed cluster may take until every call is answered and all replicas agree.
_SETTLE_LIMIT_NS: Final = 180 * NS_PER_S
_LOOK_AGAIN_NS: Final = NS_PER_S
_STATUS_TIMEOUT_S: Final = 5.0
# The mark of an alarm that no run may raise, whatever its faults are.
DIVERGED: Final = "alarm raised: ALARM_KIND_REPLICA_DIVERGED"
# What the gRPC library logs where a handler raises what it should not.
UNEXPECTED: Final = "error Unexpected exception raised by servicer method %s"


@dataclass
class WorldOutcome:
    """What a run came to."""

    seed: int
    digest: str = ""
    steps: int = 0
    virtual_ms: int = 0
    answered: int = 0
    unknown: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    branches: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    checker: str = ""
    """The checker whose promise is broken; empty if it was none's."""
    took_s: float = 0.0
    """Processor time."""
    story: list[str] = field(default_factory=list)
    """What happened, of a run that failed."""

    @property
    def is_good(self) -> bool:
        """Whether every promise held."""
        return not self.violations


class Course(Protocol):
    """What is done to a cluster between its start and its end."""

    def before_start(self, run: WorldRun, faults: Faults) -> None:
        """Do what comes before any process runs."""
        ...

    def go(self, run: WorldRun, faults: Faults) -> bool:
        """Do the rest; return whether the cluster must be whole and at rest after all faults."""
        ...


class PlannedCourse:
    """The faults of the plan strike for as long as the options say."""

    def before_start(self, run: WorldRun, faults: Faults) -> None:
        """Have the bootstrap struck, if that is planned."""
        faults.before_start()

    def go(self, run: WorldRun, faults: Faults) -> bool:
        """Let the faults strike while time passes."""
        faults.begin()
        run.world.run(lambda: False, run.options.seconds * NS_PER_S)
        return True


class WorldRun:
    """Runs once. The transcript is in `world.schedule`.

    With `demands` clients call only as often as these say.
    """

    def __init__(
        self,
        seed: int,
        options: WorldOptions,
        course: Course | None = None,
        demands: Demands | None = None,
    ) -> None:
        self.world = World(seed, options.transport)
        self.outcome = WorldOutcome(seed)
        self.options = options
        self._course = course or PlannedCourse()
        self._is_planned = course is None
        self.heard = Heard()
        self.observer = Observer(self.world, options.replicas, self.heard)
        self._branches = Branches(self.world)
        self.mail = Mail(self.world, self._branches, CLUSTER_ID)
        failed = self.outcome.violations.append
        self._clients = Clients(self.world, options, self.heard, failed, demands)
        self._wanderers = Wanderers(self.world, self.outcome.violations.append)
        self._watchers = Watchers(self.world, failed, self._last_told)
        self._narrow_watchers = NarrowWatchers(self.world, failed)
        self._strangers = Strangers(self.world, failed)
        self._members = Members(self.world, failed)
        self.book = MemberBook(options.replicas, options.standbys)
        self.stewards = Stewards(self, failed)
        self.brokers = WorldBrokers(self.world, failed, self._leading)
        self._rude_peers = RudePeers(self.world, failed, self._branches.counts)
        self._renewals = Renewals(self.world, self._branches.counts)
        self._file_troubles = FileTroubles(self.world, self._branches.counts)
        self._wrong_starts = WrongStarts(self.world, options, failed, self._branches.counts)
        self._around = RunSurroundings(self.world, options)
        self._faults: Faults | None = None
        self.replicas: list[WorldReplica] = []
        """All that there ever were, by number."""
        self.may_diverge = False
        """Whether a story has changed the state of a replica, or its answers."""
        self._statuses: dict[int, cluster_pb2.GetStatusResponse] = {}

    def run(self) -> WorldOutcome:
        """Run, judge, and return what it came to."""
        with self._pipelines(), self._around.in_place(), self.world.running():
            try:
                self._go_through()
            except Broken as broken:
                self.outcome.checker = broken.checker
                self.outcome.violations.append(str(broken))
            except Defect:
                pass  # it is among the defects
        outcome, schedule = self.outcome, self.world.schedule
        outcome.digest, outcome.steps = schedule.digest, schedule.steps
        outcome.virtual_ms = schedule.now_ns * 1_000 // NS_PER_S
        outcome.unknown, outcome.marks = self.heard.unknown, self.world.marks
        outcome.branches = self._branches.counts
        if not outcome.checker:
            self._judge_log_time()
            self._judge()
        return outcome

    def _pipelines(self) -> AbstractContextManager[object]:
        if not self.options.pipelines_are_full:
            return nullcontext()
        return mock.patch.object(batcher, "gathered_commands", lambda under_way: int(under_way > 0))

    def _go_through(self) -> None:
        options, world = self.options, self.world
        count = options.replicas + options.standbys
        self.replicas = [
            WorldReplica(world, number, options, self._around) for number in range(count)
        ]
        self.mail.watch(self.replicas)
        # Before the checkers, which then see only effects that no fault has prevented.
        faults = self._faults = self._make_faults()
        self._course.before_start(self, faults)
        for replica in self.replicas:
            self._watch(replica)
            replica.start()
        if not self._must(lambda: self.primary is not None, _START_LIMIT_NS, "no primary"):
            return
        addresses = [replica.address for replica in self.replicas]
        if options.is_changing and self._is_planned:
            addresses += planned_addresses(len(addresses))
        access = Access(addresses, self._root_password(), has_brokers=options.brokers > 0)
        setup = self._clients.run_alone(lambda: prepare(list(access.addresses), access.password))
        if not self._must(lambda: not setup.is_alive, _START_LIMIT_NS, "the stream is not made"):
            return
        self._clients.begin(access)
        if options.is_changing:
            self._begin_changes(access)
        self._wanderers.begin(access, WANDERER, options.wanderers, wanderer_acts.ACTS)
        self._wanderers.begin(access, OPERATOR, options.operators, operator_acts.ACTS)
        # What a narrow watcher is shown is held against what one of everything is shown.
        self._watchers.begin(access, max(options.watchers, min(1, options.narrow_watchers)))
        self._members.begin(access, options.members)
        self._narrow_watchers.begin(access, options.narrow_watchers)
        self._strangers.begin(access, options.strangers)
        self.brokers.begin(access, options.brokers, is_busy=self._is_planned)
        self._rude_peers.begin(self.replicas, options.rude_peers)
        if self._around.encrypted is not None:
            self._renewals.begin(self._around.encrypted, self.replicas)
        if self._around.programs is not None:
            self._file_troubles.begin(self._around.programs, self.replicas)
            self._wrong_starts.begin(self.replicas)
        must_settle = self._course.go(self, faults)
        self.outcome.faults = faults.counts
        if must_settle:
            faults.end()
            self.heard.healed_ns = world.schedule.now_ns
            self._settle(access.password)

    def _watch(self, replica: WorldReplica) -> None:
        replica.ended.append(self._branches.ended)
        self.observer.watch(replica)

    def _begin_changes(self, access: Access) -> None:
        """Have an operator change the members, who tells all replicas that the cluster runs."""
        for replica in self.replicas:
            replica.seeds = self.book.members_now
        self.stewards.begin(access, is_busy=self._is_planned)

    def add_replica(self) -> WorldReplica:
        """Put a machine into the world; nothing runs on it yet."""
        assert self._faults is not None, "the run has begun"
        number = len(self.replicas)
        replica = WorldReplica(self.world, number, self.options, self._around)
        replica.seeds = self.book.members_now
        replica.joins, replica.is_wanted = True, False
        self.replicas.append(replica)
        self.mail.take(replica)
        self._faults.steps.watch(replica)
        self._watch(replica)
        return replica

    def count(self, what: str) -> None:
        """Count what the steward did."""
        self._branches.counts[what] += 1

    @property
    def members(self) -> list[WorldReplica]:
        """The replicas that belong to the cluster, as the operator was told."""
        return [self.replicas[number] for number in sorted(self.book.members)]

    def _make_faults(self) -> Faults:
        options, world = self.options, self.world
        victims = victims_of(options.replicas, options.standbys, Random(f"victims {world.seed}"))
        self.book.victims = victims
        ground = Ground(
            world,
            self.replicas,
            self._clients,
            victims,
            self._branches,
            self.mail,
            self._members,
            options,
            self.book,
        )
        ground.lasts_ms_max = options.lasts_ms_max
        return Faults(ground, options.planned(world.seed), self.brokers)

    # --- Steps ---

    def _settle(self, password: str) -> None:
        """After all faults every call is answered, and every replica has the same state."""
        self._renewals.end()
        self._file_troubles.end()
        self._wrong_starts.end()
        programs = (
            *(self._clients, self._wanderers, self._watchers, self._members),
            *(self._narrow_watchers, self._strangers, self._rude_peers, self.brokers),
            self.stewards,
        )
        for who in programs:
            who.end()
        is_over = self._must(
            lambda: all(who.are_over for who in programs),
            _SETTLE_LIMIT_NS,
            "not every call came to an end",
        )
        self.outcome.answered = self._clients.answered
        if not is_over:
            return
        for replica in self.replicas:
            if replica.number not in self.book.members:
                replica.retire()
        for round_number in range(_SETTLE_LIMIT_NS // _LOOK_AGAIN_NS):
            self._help_refused()
            self._ask_statuses(round_number, password)
            if self._agree():
                self.observer.demand_kept(min(revision for revision, _ in self._states().values()))
                self._judge_scrubbers()
                return
            self.world.run(lambda: False, _LOOK_AGAIN_NS)
        members = [f"{each.number}: {self._is_member(each)}" for each in self.members]
        told = f"the replicas do not agree: {self._states()}, {members}"
        self.outcome.violations.append(told)

    def _judge_scrubbers(self) -> None:
        self.outcome.violations += judge_scrubbers(self.world, self.members, self._branches.counts)

    def _help_refused(self) -> None:
        """Do what the refusal of an older directory tells an operator to do."""
        for replica in self.members:
            if replica.is_refused:
                self._branches.counts[REFUSED] += 1
                self.world.schedule.note(f"r{replica.number}", "is refused, and gets an empty disk")
                replica.give_empty_disk()

    def _must(self, holds: Callable[[], bool], limit_ns: int, otherwise: str) -> bool:
        held = self.world.run(holds, limit_ns)
        if not held:
            self.outcome.violations.append(f"{otherwise} within {limit_ns // NS_PER_S} s")
        return held

    @property
    def primary(self) -> WorldReplica | None:
        """The replica that leads, as far as it knows itself; None if there is none."""
        return next((replica for replica in self.replicas if replica.is_primary), None)

    def _leading(self) -> object:
        primary = self.primary
        if primary is None or primary.coordinator is None:
            return None
        return primary.number, primary.coordinator.driver.core.view

    def _root_password(self) -> str:
        primary = self.primary
        assert primary is not None, "there is a primary"
        found = [primary.root_password, *(replica.root_password for replica in self.replicas)]
        return next(password for password in found if password is not None)

    # --- The state in the end ---

    def _ask_statuses(self, round_number: int, password: str) -> None:
        self._statuses.clear()
        for replica in self.members:

            async def ask(replica: WorldReplica = replica) -> None:
                self._statuses[replica.number] = await status_of(replica.address, password)

            machine = self.world.machine(f"10.0.2.{round_number}.{replica.number}")
            asking = self.world.process(f"s{replica.number}", machine)
            asking.run(ask)
            self.world.run(partial(_is_over, asking), _SETTLE_LIMIT_NS)

    def _states(self) -> dict[int, tuple[int, tuple[str, ...]]]:
        return {
            number: (
                status.header.revision,
                (*(service.state_digest for service in status.services), status.sessions_digest),
            )
            for number, status in self._statuses.items()
        }

    def _agree(self) -> bool:
        states = self._states()
        is_one = len(states) == len(self.members) and len(set(states.values())) == 1
        return is_one and all(self._is_member(replica) for replica in self.members)

    def _is_member(self, replica: WorldReplica) -> bool:
        """Whether a replica is in the epoch of which the operator was told."""
        if replica.coordinator is None:
            return False
        own = replica.coordinator.driver.core.membership
        book = self.book
        return (set(own.voters), set(own.standbys)) == (set(book.voters), set(book.standbys))

    # --- Judges ---

    @property
    def log_time_us(self) -> int:
        """The time of the last entry, microseconds since 1970; 0 if nobody runs."""
        running = [r.coordinator for r in self.replicas if r.coordinator is not None]
        return max((each.driver.core.log_time_us for each in running), default=0)

    def _judge_log_time(self) -> None:
        """Log time never goes back, so a wrong clock that it followed shows in the end."""
        ahead_us = self.log_time_us - self.world.true_us
        if ahead_us > CLOCK_AHEAD_US_MAX:
            self.outcome.violations.append(f"log time is {ahead_us} us ahead of true time")

    def _judge_brokers(self) -> None:
        brokers, branches = self.brokers, self.outcome.branches
        self.outcome.violations += brokers.violations()
        branches["records acknowledged by brokers"] = brokers.acknowledged
        branches["commands of brokers accepted"] = len(brokers.acts.accepted)
        branches["reports of brokers refused"] = brokers.acts.refused.total()
        branches["epochs of brokers ended by silence"] = brokers.fenced_silent

    def _last_told(self) -> int:
        """Return the last revision of which a caller was told."""
        return max((each.revision or 0 for _, each in self.heard.operations), default=0)

    def _judge(self) -> None:
        self.outcome.violations += self.world.defects
        if self.outcome.marks[UNEXPECTED]:
            self.outcome.violations.append("a method failed unexpectedly")
        if self.outcome.marks[DIVERGED] and not self.may_diverge:
            self.outcome.violations.append("one log led replicas to different ends")
        self.outcome.violations += [
            f"a healthy cluster did not answer {call}" for call in self.heard.neglected
        ]
        if not self.may_diverge:
            told = told_changes(self.heard.operations)
            feed = self._watchers.feed
            self.outcome.violations += feed.violations(told)
            self.outcome.violations += self._narrow_watchers.violations(feed)
        self.outcome.branches["revisions shown to watchers"] = self._watchers.feed.revisions
        shown = self._narrow_watchers.revisions
        self.outcome.branches["revisions shown to narrow watchers"] = shown
        self.outcome.violations += self._members.read.violations()
        self.outcome.branches["partitions read by members"] = len(self._members.read.readings)
        self._judge_brokers()
        for key, operations in sorted(history.by_key(self.heard.operations).items()):
            history.demand_sequential_clients(operations)
            known = _known(operations)
            found = witness.violations(known, REGISTER, reads=READS)
            self.outcome.violations += [f"{key}: {violation}" for violation in found]
            if wing_gong.linearization(unseen_alike(operations), REGISTER) is None:
                self.outcome.violations.append(f"{key}: its history is not linearizable")


def _known(operations: Sequence[history.Operation]) -> list[history.Operation]:
    """Return a history for the judge that goes by revisions, empty if a write is not known."""
    is_whole = all(each.is_answered for each in operations)
    return list(operations) if is_whole else []


def _is_over(process: WorldProcess) -> bool:
    return not process.is_alive


async def status_of(address: str, password: str) -> cluster_pb2.GetStatusResponse:
    """Return a replica's own state, with digests."""
    identity = AccessTokenSource(Credentials(ROOT_USERNAME, password))
    async with Endpoint(address).open() as channel:
        token = await identity.access_token(channel)
        request = cluster_pb2.GetStatusRequest(include_digests=True)
        response: cluster_pb2.GetStatusResponse = await unary(
            channel, request, access_token=token, timeout_s=_STATUS_TIMEOUT_S, stale=True
        )
        return response
