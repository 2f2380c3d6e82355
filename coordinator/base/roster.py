"""Which replicas there are, and which of them have a vote: one object for all parts of a process.

It follows the epoch that the core is in (`coordinator.vsr.membership`). Parts that ask it each time
need not be told of a new epoch. Those that keep something of each replica follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self


class Roster:
    """The replicas of the present epoch, as one of them sees it. Any thread may ask."""

    def __init__(
        self,
        replica_id: int,
        voters: Iterable[int],
        standbys: Iterable[int] = (),
        epoch: int = 0,
    ) -> None:
        self.replica_id = replica_id
        self._followers: list[Callable[[], None]] = []
        self.members: tuple[int, ...] = ()
        """The ids of all replicas: voters, then standbys."""
        self.enter(voters, standbys, epoch)

    @classmethod
    def founding(cls, replica_id: int, replica_count: int, standby_count: int = 0) -> Self:
        """Return that of a new cluster: ids from 0 on, voters first."""
        ids = range(replica_count + standby_count)
        return cls(replica_id, ids[:replica_count], ids[replica_count:])

    def enter(self, voters: Iterable[int], standbys: Iterable[int], epoch: int = 0) -> None:
        """Go by the members of another epoch."""
        before = self.members
        self.epoch = epoch
        """The number of the epoch, 0 for the one that began with the cluster."""
        self.voters = tuple(voters)
        """The ids of the replicas that have a vote, in the order in which they lead."""
        self.standbys = tuple(standbys)
        """The ids of the replicas that follow without a vote."""
        self.members = self.voters + self.standbys
        self.others = tuple(sorted(each for each in self.members if each != self.replica_id))
        """The ids of all other replicas, in order."""
        known = (*self.members, self.replica_id)
        self.former = tuple(sorted(each for each in before if each not in known))
        """The replicas that the last change removed. Until they are stopped, they are answered."""
        for entered in self._followers:
            entered()

    def follow(self, entered: Callable[[], None]) -> None:
        """Call this whenever other members were entered, by whoever enters them."""
        self._followers.append(entered)

    @property
    def majority(self) -> int:
        """How many voters are more than half of them, whether or not they run."""
        return len(self.voters) // 2 + 1

    @property
    def is_standby(self) -> bool:
        """Whether this replica has no vote: it follows, or was removed."""
        return self.replica_id not in self.voters

    @property
    def is_alone(self) -> bool:
        """Whether this replica is the one that has a vote."""
        return self.voters == (self.replica_id,)
