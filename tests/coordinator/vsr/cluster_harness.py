"""Replicas in one process, over a network and disks that do nothing unless a test says so.

Every disk write and discard stays pending and every message in flight until the test completes,
delivers or drops it. Whatever a test does, the harness holds the cluster to what replication
promises: entries execute in op order without a gap, all replicas execute the same ones, and each
was durable on a replication quorum of disks before anyone executed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from coordinator.vsr import (
    Admitted,
    BootstrapReady,
    ClientBatch,
    Commit,
    Configuration,
    CoreState,
    DiscardAfter,
    Discarded,
    Effect,
    Event,
    Found,
    Message,
    PersistPrepares,
    PersistSuperblock,
    Prepare,
    PrepareApplied,
    PrepareHeader,
    ReadIndexGranted,
    ReadIndexRequested,
    Received,
    RecordFaulty,
    RecordId,
    RecordsDurable,
    Replica,
    Send,
    SendCommitted,
    SendHeld,
    SnapshotNeeded,
    Start,
    Stuck,
    SuperblockDurable,
    Tick,
)
from coordinator.vsr.log import LOG_TAIL_PREPARES
from coordinator.vsr.membership import (
    FOUNDING_EPOCH,
    Membership,
    epoch_of,
    founding,
    view_in,
)
from coordinator.vsr.messages import CommittedGoneMessage, CommittedMessage, RepairMessage
from tests.coordinator.vsr import membership_bodies as bodies
from viewstamp.format.prepare import seal
from viewstamp.limits import BOOT_NONCE_BYTES, HEARTBEAT_MS, TICK_MS

CLUSTER_ID = bytes(15) + b"\x07"
FEATURE_LEVEL = 1
# A standby hears of its cluster by the first heartbeat, and asks for the log by the next.
STANDBY_JOINS_MS = 3 * HEARTBEAT_MS


def configuration(
    replica: int,
    replica_count: int,
    standby_count: int = 0,
    membership: Membership | None = None,
) -> Configuration:
    """The configuration of one replica of the test cluster."""
    return Configuration(
        CLUSTER_ID, replica, replica_count, FEATURE_LEVEL, standby_count, membership
    )


Arrives = Callable[[int, Message], bool]
"""Whether a message to a replica arrives."""


def always(to: int, message: Message) -> bool:
    """Lose nothing."""
    return True


class CoreMachine:
    """One replica with its disk. The disk outlives the process."""

    def __init__(self, index: int, replica_count: int, standby_count: int = 0) -> None:
        self.index = index
        self.replica_count = replica_count
        self.standby_count = standby_count
        self.boots = 0
        self.random: Random | None = None
        self.journal: list[Prepare] = []
        self.lost: list[Prepare] = []
        """What was in the journal when the disk was lost."""
        self.damaged: set[int] = set()
        self.hides_head = False
        """Whether not even the op can be told of a damaged last record."""
        self.first_held_op = 1
        self.generation = 0
        self.superblock: CoreState | None = None
        self.disks = 0
        is_founding = index < replica_count + standby_count
        self.told = None if is_founding else Membership(0, (0,), (index,))
        """What a replica that was added later is told of the cluster."""
        self.forget()

    def forget(self) -> None:
        """Lose what a crash loses: the process and all writes under way."""
        self.replica = Replica(
            configuration(self.index, self.replica_count, self.standby_count, self.told),
            seal=seal,
            read_initial_members=bodies.read_initial_members,
            jitter=self.jitter,
            read_membership=bodies.read_membership,
        )
        self.writes: list[Prepare | DiscardAfter] = []
        self.unread: set[int] = set()
        """Entries handed out without a body, whose record turned out to be damaged."""
        self.found_damaged: set[int] = set()
        self.unreadable: set[int] = set()
        """Damaged records that a read found, to be reported."""
        self.alarms: list[Stuck | SnapshotNeeded] = []
        self.superblock_write: CoreState | None = None
        self.executed_op = 0
        self.applied_op = 0
        self.nonces: tuple[bytes, ...] = ()

    def jitter(self, limit: int) -> int:
        """Another part of the limit for each replica, and always the same; or a random one."""
        if self.random is not None:
            return self.random.randint(0, limit)
        return limit * self.index // max(self.replica_count + self.standby_count, self.index + 1)

    def intact(self, op: int) -> Prepare | None:
        """Return the result of a journal read; None if the record is damaged, or absent."""
        if not self.first_held_op <= op <= len(self.journal):
            return None
        if op in self.damaged:
            self.unreadable.add(op)
            return None
        return self.journal[op - 1]

    def lose_disk(self) -> None:
        """Come back with an empty one."""
        self.lost, self.journal, self.superblock = self.journal, [], None
        self.disks += 1
        self.damaged = set()

    @property
    def can_apply(self) -> bool:
        """Return whether an executed entry with its body is left to apply."""
        return self.applied_op < self.executed_op and self.applied_op + 1 not in self.unread

    def complete(self, write: Prepare | DiscardAfter) -> None:
        """Complete everything that is under way to the disk."""
        if isinstance(write, DiscardAfter):
            del self.journal[write.op :]
            self.damaged = {op for op in self.damaged if op <= write.op}
        else:
            assert write.op <= len(self.journal) + 1, "the journal has a gap"
            self._check_chain(write)
            self.journal[write.op - 1 : write.op] = [write]
            self.damaged.discard(write.op)

    def _check_chain(self, write: Prepare) -> None:
        """Refuse an entry that does not fit its intact neighbours, as the journal does."""
        intact = {each.op: each for each in self.journal if each.op not in self.damaged}
        before, own = intact.get(write.op - 1), intact.get(write.op)
        following = intact.get(write.op + 1)
        assert before is None or before.checksum == write.parent, "it follows another entry"
        assert own is None or own.checksum == write.checksum, "it replaces another entry"
        assert following is None or following.parent == write.checksum, "another one follows it"

    def start_event(self, base_op: int = 0) -> Start:
        """What a new process finds on this disk; each boot has another nonce.

        `base_op` is that of the snapshot which its stages were restored from.
        """
        self.boots += 1
        self.executed_op = self.applied_op = base_op
        nonce = bytes([self.index, self.boots]) + bytes(BOOT_NONCE_BYTES - 2)
        head_op = len(self.journal)
        is_hidden = self.hides_head and head_op in self.damaged
        intact = [entry.header for entry in self.journal if entry.op not in self.damaged]
        suffix = tuple(intact[-LOG_TAIL_PREPARES:])
        faulty = tuple(op for op in sorted(self.damaged) if op < head_op or not is_hidden)
        checksums = tuple(
            (op, self.journal[op].header.parent)
            for op in faulty
            if op < head_op and op + 1 not in self.damaged
        )
        changes = tuple(self.journal[header.op - 1] for header in suffix if header.ends_epoch)
        return Start(
            self.superblock,
            suffix,
            nonce,
            base_op,
            faulty,
            is_hidden,
            checksums,
            changes,
            self.disk_id,
        )

    @property
    def disk_id(self) -> bytes:
        """The id of its data directory: an empty one that takes its place has another."""
        return bytes([self.index, self.disks])

    def holds(self, header: PrepareHeader) -> bool:
        """Whether this disk has, or had before it was damaged, the entry durably."""
        if len(self.lost) >= header.op and self.lost[header.op - 1].header == header:
            return True
        return (
            len(self.journal) >= header.op
            and self.journal[header.op - 1].header.checksum == header.checksum
        )


class CoreCluster:
    """All machines, the messages in flight, and the one history that they must share.

    The first `replica_count` have a vote, the others are standbys.
    """

    def __init__(self, replica_count: int, standby_count: int = 0, newcomer_count: int = 0) -> None:
        self.replica_count = replica_count
        member_count = replica_count + standby_count
        self.machines = [
            CoreMachine(index, replica_count, standby_count)
            for index in range(member_count + newcomer_count)
        ]
        self.memberships = {FOUNDING_EPOCH: founding(replica_count, standby_count)}
        """Who belongs to the cluster in each epoch that began."""
        self.network: list[tuple[int, Send]] = []
        self.history: dict[int, bytes] = {}
        self.admitted_ops: list[int] = []
        self.reads: dict[int, int] = {}
        """By token: the last entry that anyone had executed when the read was asked for."""
        self.now_ticks = 0
        self.stopped: set[int] = set(range(member_count, member_count + newcomer_count))
        """Replicas without a process: what is sent to them is lost."""

    @property
    def membership(self) -> Membership:
        """Who belongs to the cluster in its last epoch."""
        return self.memberships[max(self.memberships)]

    @property
    def voters(self) -> list[CoreMachine]:
        """The machines whose disks count now."""
        return [self.machines[replica] for replica in self.membership.voters]

    @property
    def standbys(self) -> list[CoreMachine]:
        """Those that do not count."""
        return [self.machines[replica] for replica in self.membership.standbys]

    def shuffle_jitter(self, random: Random) -> None:
        """Let the jitter of all replicas come from `random`."""
        for machine in self.machines:
            machine.random = random

    def step(self, index: int, event: Event) -> list[Effect]:
        """Give `event` to one replica and take its effects in; writes and messages stay pending."""
        if isinstance(event, ReadIndexRequested):
            self.reads[event.token] = max(self.history, default=0)
        machine = self.machines[index]
        effects = machine.replica.step(event, self.now_ticks)
        for effect in effects:
            self._take(machine, effect)
        unreadable, machine.unreadable = machine.unreadable, set()
        machine.found_damaged |= unreadable
        for op in sorted(unreadable):
            effects += self.step(index, RecordFaulty(op))
        return effects

    def _take(self, machine: CoreMachine, effect: Effect) -> None:
        if isinstance(effect, Send):
            self.network.append((machine.index, effect))
        elif isinstance(effect, PersistPrepares):
            machine.writes.extend(effect.prepares)
        elif isinstance(effect, PersistSuperblock):
            assert machine.superblock_write is None, "two superblock writes at once"
            machine.superblock_write = effect.state
        elif isinstance(effect, BootstrapReady):
            machine.nonces = effect.nonces
        elif isinstance(effect, Admitted):
            self.admitted_ops.append(effect.op)
        elif isinstance(effect, Commit):
            self._execute(machine, effect)
        elif isinstance(effect, ReadIndexGranted):
            assert effect.op >= self.reads.pop(effect.token), "a read would miss what others saw"
        elif isinstance(effect, DiscardAfter):
            machine.writes.append(effect)
        elif isinstance(effect, SendCommitted):
            self._send_committed(machine, effect)
        elif isinstance(effect, SendHeld):
            held = machine.intact(effect.op)
            if held is not None and held.checksum == effect.checksum:
                message = RepairMessage(CLUSTER_ID, machine.index, held)
                self.network.append((machine.index, Send(effect.to_replica, message)))
        elif isinstance(effect, Stuck | SnapshotNeeded):
            machine.alarms.append(effect)

    def _send_committed(self, machine: CoreMachine, effect: SendCommitted) -> None:
        """Answer out of the journal, as a driver does."""
        answers: list[Message] = []
        if effect.first_op < machine.first_held_op:
            cut_op = machine.first_held_op - 1
            answers.append(
                CommittedGoneMessage(
                    CLUSTER_ID, machine.index, machine.first_held_op, machine.generation, cut_op
                )
            )
        else:
            held = [machine.intact(op) for op in range(effect.first_op, effect.last_op + 1)]
            commit = machine.replica.marks.commit_max
            answers += [CommittedMessage(CLUSTER_ID, machine.index, e, commit) for e in held if e]
        self.network += [(machine.index, Send(effect.to_replica, each)) for each in answers]

    def _execute(self, machine: CoreMachine, commit: Commit) -> None:
        """Hold an execution to order, agreement and durability."""
        if commit.op in machine.unread:
            assert commit.prepare, "what could not be read comes again with its body"
            machine.unread.discard(commit.op)
        elif commit.op <= machine.executed_op and commit.op in machine.found_damaged:
            return
        else:
            assert commit.op == machine.executed_op + 1, "execution skips or repeats an entry"
            machine.executed_op = commit.op
        entry = commit.prepare or machine.intact(commit.op)
        if entry is None:
            machine.unread.add(commit.op)
            machine.unreadable.add(commit.op)
            return
        assert entry.op == commit.op, "the body is that of another entry"
        agreed = self.history.setdefault(commit.op, entry.checksum)
        assert agreed == entry.checksum, "two replicas execute different entries"
        if entry.header.ends_epoch:
            membership = replace(
                bodies.read_membership(entry.body), began_op=entry.op, began_checksum=entry.checksum
            )
            self.memberships.setdefault(membership.epoch, membership)
        membership = self.memberships[epoch_of(entry.view)]
        copies = sum(self.machines[other].holds(entry.header) for other in membership.voters)
        quorum = membership.quorums.replication
        assert copies >= quorum, f"op {commit.op} executed with {copies} durable copies"

    def start(self, index: int, base_op: int = 0) -> list[Effect]:
        """Crash the replica if it runs, and start it on its disk."""
        machine = self.machines[index]
        is_founder = index in self.memberships[FOUNDING_EPOCH].members
        if not is_founder and machine.boots == 0:
            machine.told = self.membership
        machine.forget()
        self.stopped.discard(index)
        return self.step(index, machine.start_event(base_op))

    def stop(self, index: int) -> None:
        """Kill the process, and with it what it had under way to its disk."""
        self.machines[index].forget()
        self.stopped.add(index)

    def found(self, index: int, wall_clock_us: int = 1_000) -> list[Effect]:
        """Answer the replica's BootstrapReady."""
        return self.step(index, Found(b"".join(self.machines[index].nonces), wall_clock_us))

    def batch(self, index: int, command_count: int = 1, wall_clock_us: int = 0) -> list[Effect]:
        """Offer a batch of so many commands, each a byte."""
        return self.step(index, ClientBatch(b"x" * command_count, command_count, wall_clock_us))

    def change(self, index: int, later: Membership, wall_clock_us: int = 0) -> list[Effect]:
        """Offer the last entry of an epoch."""
        batch = ClientBatch(bodies.change_body(later), 1, wall_clock_us, ends_epoch=True)
        return self.step(index, batch)

    def next_epoch(
        self, voters: Sequence[int], standbys: Sequence[int] = (), place: int = 0
    ) -> Membership:
        """The next epoch with these members, on the disks that they have now."""
        now = self.membership
        newly = sorted(set(voters) - set(now.voters))
        disks = [each for each in now.disks if each[0] in voters]
        disks += [(each, self.machines[each].disk_id) for each in newly]
        first_view = view_in(now.epoch + 1, place)
        return Membership(first_view, tuple(voters), tuple(standbys), tuple(disks))

    def sync(self, index: int, count: int | None = None) -> list[Effect]:
        """Complete the oldest `count` pending journal writes, or all."""
        machine = self.machines[index]
        done = machine.writes[:count]
        del machine.writes[: len(done)]
        records: list[RecordId] = []
        effects: list[Effect] = []
        for write in done:
            machine.complete(write)
            if isinstance(write, DiscardAfter):
                effects += self.step(index, RecordsDurable(tuple(records)))
                effects += self.step(index, Discarded(write.op))
                records = []
            else:
                records.append(RecordId(write.op, write.checksum))
        return effects + self.step(index, RecordsDurable(tuple(records)))

    def sync_superblock(self, index: int) -> list[Effect]:
        """Complete the pending superblock write."""
        machine = self.machines[index]
        state, machine.superblock_write = machine.superblock_write, None
        assert state is not None, "no superblock write is pending"
        machine.superblock = state
        return self.step(index, SuperblockDurable(state))

    def apply(self, index: int) -> list[Effect]:
        """Apply the oldest executed entry."""
        machine = self.machines[index]
        assert machine.applied_op + 1 not in machine.unread, "what was not read cannot apply"
        machine.applied_op += 1
        return self.step(index, PrepareApplied(machine.applied_op))

    def deliver(self, position: int = 0, *, keep: bool = False) -> list[Effect]:
        """Deliver a message in flight; with `keep` it stays in flight, as a duplicate."""
        _, send = self.network[position] if keep else self.network.pop(position)
        if send.to_replica in self.stopped:
            return []
        return self.receive(send.to_replica, send.message)

    def receive(self, index: int, message: Message) -> list[Effect]:
        """Hand a message to a replica, whatever its sender."""
        return self.step(index, Received(message))

    def enter_view_by_force(self, index: int, *, view: int) -> None:
        """Put a replica into a later view, as the view change among several will."""
        state = self.machines[index].replica.state
        state.view = state.log_view = view
        state.durable = CoreState(view, view, state.commit_max)

    def tick(self, index: int) -> list[Effect]:
        """Give a replica the time."""
        return self.step(index, Tick())

    def settle(self, arrives: Arrives = always) -> None:
        """Let everything under way happen, until nothing is left; lose what does not arrive."""
        progress = True
        while progress:
            progress = bool(self.network)
            while self.network:
                _, send = self.network[0]
                if arrives(send.to_replica, send.message):
                    self.deliver()
                else:
                    self.network.pop(0)
            for machine in self.machines:
                progress = self.settle_disk(machine) or progress

    def pass_time(self, duration_ms: int, arrives: Arrives = always) -> None:
        """Let time pass; everything under way happens at once."""
        self.settle(arrives)
        for _ in range(duration_ms // TICK_MS):
            self.now_ticks += 1
            for machine in self.machines:
                if machine.index not in self.stopped:
                    self.tick(machine.index)
            self.settle(arrives)

    def settle_disk(self, machine: CoreMachine) -> bool:
        busy = bool(machine.writes or machine.superblock_write)
        if machine.writes:
            self.sync(machine.index)
        if machine.superblock_write is not None:
            self.sync_superblock(machine.index)
        while machine.can_apply:
            self.apply(machine.index)
        return busy


def bootstrapped(
    replica_count: int, standby_count: int = 0, newcomer_count: int = 0
) -> CoreCluster:
    """A cluster just bootstrapped: all replicas are in status normal, nothing is pending.

    Newcomers are machines without a process, which no epoch has yet.
    """
    cluster = CoreCluster(replica_count, standby_count, newcomer_count)
    for replica in reversed(cluster.membership.members):
        cluster.start(replica)
    cluster.settle()
    cluster.found(0)
    cluster.settle()
    if standby_count:
        cluster.pass_time(STANDBY_JOINS_MS)
    return cluster
