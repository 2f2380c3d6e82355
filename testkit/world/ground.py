"""What faults strike: the parts of a run, whom to choose, and what happens later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from coordinator.vsr.quorum import QUORUMS
from testkit.partitions import Link
from testkit.world.schedule import NS_PER_MS

if TYPE_CHECKING:
    from testkit.world.branches import Branches
    from testkit.world.clients import Clients
    from testkit.world.mail import Mail
    from testkit.world.member_book import MemberBook
    from testkit.world.members import Members
    from testkit.world.options import WorldOptions
    from testkit.world.process import WorldProcess
    from testkit.world.replica import WorldReplica
    from testkit.world.world import World

_PAIR: Final = 2
LASTS_MS_MAX: Final = 60_000
# A short trouble is a busy machine; a long one outlives every timeout.
LASTS_MS: Final = (20, 8_000)


def victims_of(voters: int, standbys: int, random: Random) -> tuple[int, ...]:
    """Return whose stored data may be damaged: the same few replicas throughout a run.

    A committed entry is on a replication quorum of disks, so an intact copy is left. Standbys
    are in no quorum. Of two voters none is a victim: the other one cannot admit it again alone.
    """
    first = random.randrange(voters)
    count = QUORUMS[voters].replication - 1 if voters > _PAIR else 0
    return tuple(
        [(first + number) % voters for number in range(count)]
        + list(range(voters, voters + standbys))
    )


class Ground:
    """The parts of one run. `random` is that of the fault at hand."""

    def __init__(
        self,
        world: World,
        replicas: Sequence[WorldReplica],
        clients: Clients,
        victims: Sequence[int],
        branches: Branches,
        mail: Mail,
        members: Members,
        options: WorldOptions,
        book: MemberBook,
    ) -> None:
        self.world = world
        self.replicas = replicas
        self.clients = clients
        self.branches = branches
        self.mail = mail
        self._members = members
        self.options = options
        self._book = book
        self.random = Random(0)
        self.is_ending = False
        self.lasts_ms_max = LASTS_MS_MAX
        """No fault lasts longer, unless the shortest of its kind does."""
        self._victims = victims

    @property
    def voters(self) -> list[WorldReplica]:
        """The replicas that have a vote now."""
        return [self.replicas[number] for number in self._book.voters]

    @property
    def there(self) -> list[WorldReplica]:
        """The replicas that were started, and whose machines are not off for good."""
        return [each for each in self.replicas if each.services and not each.is_retired]

    def heir(self, leader: WorldReplica) -> WorldReplica:
        """Return the replica that leads the view after that of `leader`."""
        assert leader.coordinator is not None, "it runs"
        core = leader.coordinator.driver.core
        return self.replicas[core.membership.primary_of(core.view + 1)]

    def replica(self, primary_share: float = 0.5) -> WorldReplica:
        """Return a replica; so often the primary, if there is one."""
        primaries = [replica for replica in self.replicas if replica.is_primary]
        if primaries and self.random.random() < primary_share:
            return self.random.choice(primaries)
        return self.random.choice(self.there)

    def victim(self) -> WorldReplica | None:
        """Return a replica whose stored data may be damaged, None if there is none."""
        if not self._victims:
            return None
        return self.replicas[self.random.choice(self._victims)]

    def is_victim(self, replica: WorldReplica) -> bool:
        """Whether the stored data of a replica may be damaged."""
        return replica.number in self._victims

    def client(self) -> WorldProcess | None:
        """Return a client that lives."""
        living = [each for each in self.clients.processes if each.is_alive]
        return self.random.choice(living) if living else None

    def caller(self) -> WorldProcess | None:
        """Return a client or a member of a group that lives."""
        callers = (*self.clients.processes, *self._members.processes)
        living = [each for each in callers if each.is_alive]
        return self.random.choice(living) if living else None

    def later(
        self, bounds_ms: tuple[int, int], action: Callable[..., object], *what: object
    ) -> None:
        """Do something after a drawn time, unless all faults have ended before."""
        least_ms, most_ms = bounds_ms
        delay_ms = self.random.randint(least_ms, max(least_ms, min(most_ms, self.lasts_ms_max)))
        self.world.schedule.after(delay_ms * NS_PER_MS, self._unless_ended, action, *what)

    def cut(self, links: Sequence[Link]) -> None:
        """Cut these links between replicas."""
        for source, target in links:
            self.world.network.cut(self._host(source), self._host(target))

    def heal(self, links: Sequence[Link]) -> None:
        """Let these links carry again."""
        for source, target in links:
            self.world.network.heal(self._host(source), self._host(target))

    def _host(self, number: int) -> str:
        return self.replicas[number].machine.host

    def note(self, replica: WorldReplica, text: str) -> None:
        """Write a line of the transcript about a replica."""
        self.world.schedule.note(f"r{replica.number}", text)

    def _unless_ended(self, action: Callable[..., object], *what: object) -> None:
        if not self.is_ending:
            action(*what)
