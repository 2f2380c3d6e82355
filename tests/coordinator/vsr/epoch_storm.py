"""A storm in which the members change, too: replicas are added, get a vote, and are removed."""

from __future__ import annotations

from coordinator.vsr import ReplicaStatus
from coordinator.vsr.membership import Membership
from tests.coordinator.vsr.cluster_harness import CoreMachine
from tests.coordinator.vsr.storm import Storm

NEWCOMERS = 4
STANDBYS_MAX = 2
VOTERS_MAX = 5
CHANGE_WEIGHT = 25


class EpochStorm(Storm):
    """Plays random events on a cluster whose members come and go.

    With `voters_min` above 2 the disk of a replica may be lost: a cluster of two that lost one
    waits for people.
    """

    def __init__(self, replica_count: int, seed: int, voters_min: int = 1) -> None:
        super().__init__(replica_count, seed, newcomer_count=NEWCOMERS)
        self.voters_min = voters_min
        # A record that only the rotten disk had is lost together with the quorums of small epochs.
        spared = [self.rot] if voters_min > 2 else [self.rot, self.lose_disk]
        self.actions = [each for each in self.actions if each[1] not in spared]
        self.actions.append((CHANGE_WEIGHT, self.change_members))
        self.actions.append((CHANGE_WEIGHT, self.start_newcomers))

    def change_members(self, machine: CoreMachine) -> None:
        """Have some primary end its epoch."""
        for each in self.up:
            replica = each.replica
            leads = replica.status is ReplicaStatus.NORMAL and replica.primary == each.index
            if leads and replica.membership.epoch == self.cluster.membership.epoch:
                self.cluster.change(each.index, self.draw_change(), self.cluster.now_ticks)

    def draw_change(self) -> Membership:
        """Add a standby, give one a vote, or remove a replica; who leads first is drawn, too."""
        membership = self.cluster.membership
        voters, standbys = membership.voters, membership.standbys
        choices = [(voters, standbys)]
        given = {each for known in self.cluster.memberships.values() for each in known.members}
        newcomer = max(given) + 1
        if len(standbys) < STANDBYS_MAX and newcomer < len(self.cluster.machines):
            choices.append((voters, (*standbys, newcomer)))
        if standbys and len(voters) < VOTERS_MAX and self.has_log(standbys[0]):
            choices += 3 * [((*voters, standbys[0]), standbys[1:])]
        if len(voters) > self.voters_min:
            gone = self.random.choice(voters)
            choices.append((tuple(each for each in voters if each != gone), standbys))
        if len(standbys) > 1:
            choices.append((voters, standbys[:1]))
        chosen = self.random.choice(choices)
        return self.cluster.next_epoch(*chosen, place=self.random.randrange(len(chosen[0])))

    def has_log(self, replica: int) -> bool:
        """Return whether this replica follows the log, as one must before it gets a vote."""
        machine = self.cluster.machines[replica]
        return machine.superblock is not None and bool(machine.journal)

    def start_newcomers(self, machine: CoreMachine) -> None:
        """Start the replicas that the last epoch has, and that never ran."""
        for replica in self.cluster.membership.members:
            if self.cluster.machines[replica].boots == 0:
                self.down.discard(replica)
                self.cluster.start(replica)

    def converged(self) -> bool:
        """Return whether all members of the last epoch agree, and all others know that they are
        none, or know nothing on an empty disk. An epoch may have begun in the calm."""
        self.start_newcomers(self.cluster.machines[0])
        members = {self.cluster.machines[each] for each in self.cluster.membership.members}
        others = [each for each in self.cluster.machines if each.boots and each not in members]
        return self.agree(sorted(members, key=lambda each: each.index)) and all(
            machine.replica.status in (ReplicaStatus.REMOVED, ReplicaStatus.BLANK)
            for machine in others
        )


def changing_weather(replica_count: int, seed: int, steps: int, voters_min: int = 1) -> EpochStorm:
    """A storm of so many steps, and the calm after it."""
    storm = EpochStorm(replica_count, seed, voters_min)
    storm.run(steps)
    storm.calm()
    return storm
