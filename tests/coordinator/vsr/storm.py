"""A storm: a whole cluster under a network, disks and processes that fail as a seed says.

One generator makes every choice, so a seed determines a run. The harness checks one history and
durability at each step; `calm` then heals everything, and the remaining replicas must converge.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from coordinator.vsr import Abdicate, ReadIndexRequested, ReplicaStatus, Suspect
from tests.coordinator.vsr.cluster_harness import CoreMachine, bootstrapped
from viewstamp.limits import TICK_MS

CALM_ROUNDS_MAX = 3_000
"""How many ticks of quiet suffice: 30 s."""


class Storm:
    """Plays random events on a bootstrapped cluster."""

    def __init__(
        self, replica_count: int, seed: int, standby_count: int = 0, newcomer_count: int = 0
    ) -> None:
        self.random = Random(seed)
        self.cluster = bootstrapped(replica_count, standby_count, newcomer_count)
        machine_count = replica_count + standby_count + newcomer_count
        self.cluster.shuffle_jitter(self.random)
        self.down: set[int] = set(self.cluster.stopped)
        self.cut: set[tuple[int, int]] = set()
        """Directed pairs between which nothing passes."""
        self.tokens = 0
        self.views = [0] * machine_count
        rough = self.random.choice((1, 3, 10))
        self.burst = self.random.choice((1, 3, 3)) * machine_count
        self.actions: list[tuple[int, Callable[[CoreMachine], None]]] = [
            (300, self.deliver),
            (100, self.tick),
            (200, self.write),
            (80, self.apply),
            (60, self.batch),
            (2 * rough, self.lose),
            (2 * rough, self.duplicate),
            (10, self.read),
            (rough, self.suspect),
            (rough, self.partition),
            (rough, self.crash),
            (3 * rough, self.restart),
            (self.random.choice((0, 0, 0, 2)), self.abdicate),
            (self.random.choice((0, 0, 10)), self.rot),
            (self.random.choice((0, 2)), self.lose_disk),
        ]
        self.rotten = self.random.randrange(machine_count)
        """The one whose disk loses records. Others never do: something has to be left."""

    @property
    def up(self) -> list[CoreMachine]:
        """Return the machines whose process runs."""
        return [machine for machine in self.cluster.machines if machine.index not in self.down]

    def run(self, steps: int) -> None:
        """Make so many random events."""
        weights = [weight for weight, _ in self.actions]
        for _ in range(steps):
            (_, action), machine = (
                self.random.choices(self.actions, weights)[0],
                self.random.choice(self.cluster.machines),
            )
            if machine.index not in self.down or action == self.restart:
                action(machine)
            self.hold_views()

    def hold_views(self) -> None:
        """Check that views only grow on every disk, over crashes, too."""
        for machine in self.cluster.machines:
            if machine.superblock is not None:
                assert machine.superblock.view >= self.views[machine.index], "a view went back"
                self.views[machine.index] = machine.superblock.view

    def passes(self, item: int) -> bool:
        """Whether a message in flight can arrive."""
        source, send = self.cluster.network[item]
        return (source, send.to_replica) not in self.cut and send.to_replica not in self.down

    def pick(self) -> int | None:
        """Return a message to deliver, mostly an old one; None if the chosen one got lost."""
        network = self.cluster.network
        if not network:
            return None
        position = min(int(self.random.expovariate(0.3)), len(network) - 1)
        if not self.passes(position):
            del network[position]
            return None
        return position

    def deliver(self, machine: CoreMachine) -> None:
        for _ in range(self.random.randint(1, self.burst)):
            position = self.pick()
            if position is not None:
                self.cluster.deliver(position)

    def duplicate(self, machine: CoreMachine) -> None:
        position = self.pick()
        if position is not None:
            self.cluster.deliver(position, keep=True)

    def lose(self, machine: CoreMachine) -> None:
        if self.cluster.network:
            del self.cluster.network[self.random.randrange(len(self.cluster.network))]

    def tick(self, machine: CoreMachine) -> None:
        self.cluster.now_ticks += self.random.choice((1, 1, 1, 2, 5))
        for each in self.up:
            self.cluster.tick(each.index)

    def write(self, machine: CoreMachine) -> None:
        if machine.superblock_write is not None and self.random.random() < 0.5:
            self.cluster.sync_superblock(machine.index)
        elif machine.writes:
            self.cluster.sync(machine.index, self.random.randint(1, 3))

    def apply(self, machine: CoreMachine) -> None:
        while machine.can_apply and self.random.random() < 0.8:
            self.cluster.apply(machine.index)

    def batch(self, machine: CoreMachine) -> None:
        for each in self.up:
            self.cluster.batch(each.index, self.random.randrange(3), self.cluster.now_ticks)

    def read(self, machine: CoreMachine) -> None:
        self.tokens += 1
        self.cluster.step(machine.index, ReadIndexRequested(self.tokens))

    def partition(self, machine: CoreMachine) -> None:
        """Heal all, cut one off, cut one direction, or cut the cluster in two."""
        count = len(self.cluster.machines)
        pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
        side = set(self.random.sample(range(count), self.random.randint(1, count - 1)))
        self.cut = self.random.choice(
            (
                set(),
                set(),
                {pair for pair in pairs if machine.index in pair},
                {pair for pair in pairs if pair[0] == machine.index},
                {pair for pair in pairs if (pair[0] in side) != (pair[1] in side)},
                set(self.random.sample(pairs, len(pairs) // 2)),
            )
        )

    def crash(self, machine: CoreMachine) -> None:
        """Lose the process; of the writes under way some reached the disk."""
        for write in machine.writes[: self.random.randint(0, len(machine.writes))]:
            machine.complete(write)
        machine.forget()
        self.down.add(machine.index)

    def rot(self, machine: CoreMachine) -> None:
        """Damage some of the last records of the one rotten disk."""
        rotten = self.cluster.machines[self.rotten]
        if rotten.journal and len(self.cluster.machines) > 1:
            oldest = max(1, len(rotten.journal) - 12)
            rotten.damaged.add(self.random.randint(oldest, len(rotten.journal)))
            rotten.hides_head = self.random.random() < 0.3

    def lose_disk(self, machine: CoreMachine) -> None:
        """The rotten disk is replaced, once, where enough others are left."""
        rotten = self.cluster.machines[self.rotten]
        if self.cluster.replica_count > 2 and not rotten.lost and max(self.cluster.history) > 1:
            self.crash(rotten)
            rotten.lose_disk()
            self.views[rotten.index] = 0

    def restart(self, machine: CoreMachine) -> None:
        if machine.index in self.down and machine.boots:
            self.down.discard(machine.index)
            self.cluster.start(machine.index)

    def abdicate(self, machine: CoreMachine) -> None:
        self.cluster.step(machine.index, Abdicate("asked to"))

    def suspect(self, machine: CoreMachine) -> None:
        """Tell a replica, rightly or wrongly, that another one's process seems to be gone."""
        others = [each.index for each in self.cluster.machines if each is not machine]
        self.cluster.step(machine.index, Suspect(self.random.choice(others)))

    def calm(self) -> None:
        """Heal all; within bounded time one view is normal everywhere, with one log, applied."""
        self.cut = set()
        for index in sorted(self.down):
            if self.cluster.machines[index].boots:
                self.cluster.start(index)
        self.down = {machine.index for machine in self.cluster.machines if not machine.boots}
        for _ in range(CALM_ROUNDS_MAX):
            self.cluster.settle()
            if self.converged():
                return
            self.cluster.now_ticks += 1
            for machine in self.up:
                self.cluster.tick(machine.index)
        if self.is_undecidable():
            return
        raise AssertionError(f"no convergence in {CALM_ROUNDS_MAX * TICK_MS} ms: {self.state()}")

    def is_undecidable(self) -> bool:
        """Return whether the damaged disk lost its last record, which it alone knew to be
        committed.

        Nothing tells its checksum then. The cluster stops, and loses nothing: a documented limit.
        """
        rotten = self.cluster.machines[self.rotten]
        head_op = len(rotten.journal)
        others = [each.replica for each in self.cluster.voters if each is not rotten]
        is_voter = rotten in self.cluster.voters
        return (is_voter and head_op in rotten.damaged) and all(
            replica.marks.commit_max < head_op for replica in others
        )

    def converged(self) -> bool:
        """Return whether all are in one normal view, and executed everything that any did.

        All but the standbys have their vote.
        """
        return self.agree(self.cluster.machines)

    def agree(self, machines: list[CoreMachine]) -> bool:
        """Return whether these are in one normal view, and executed everything that any did."""
        replicas = [machine.replica for machine in machines]
        return (
            all(replica.status is ReplicaStatus.NORMAL for replica in replicas)
            and all(machine.replica.is_voter for machine in self.cluster.voters)
            and len({replica.view for replica in replicas}) == 1
            and len({replica.marks.op for replica in replicas}) == 1
            and all(r.marks.applied_op == r.marks.op for r in replicas)
            and replicas[0].marks.op >= max(self.cluster.history)
        )

    def state(self) -> str:
        """All replicas."""
        return "; ".join(repr(machine.replica) for machine in self.cluster.machines)


def weather(replica_count: int, seed: int, steps: int, standby_count: int = 0) -> Storm:
    """A storm of so many steps, and the calm after it."""
    storm = Storm(replica_count, seed, standby_count)
    storm.run(steps)
    storm.calm()
    return storm
