"""Who belongs to the cluster of a run, as its operator was told."""

from __future__ import annotations

from typing import Final

from coordinator.vsr.quorum import QUORUMS

# A commit and an election of two need both.
_PAIR: Final = 2


class MemberBook:
    """The replicas by number. Only one operator changes members, one step after the other."""

    def __init__(self, voters: int, standbys: int) -> None:
        """Begin with those that found the cluster."""
        self.voters = list(range(voters))
        self.standbys = list(range(voters, voters + standbys))
        self.victims: tuple[int, ...] = ()
        """Whose stored data may be damaged at any time."""
        self.members_now = self.members
        """The same list throughout, for those who look again later."""

    @property
    def members(self) -> list[int]:
        """The numbers of all."""
        return self.voters + self.standbys

    def added(self, replica: int) -> None:
        """A standby was added."""
        if replica not in self.members:
            self.standbys.append(replica)
            self._changed()

    def promoted(self, replica: int) -> None:
        """A standby got a vote."""
        self.standbys.remove(replica)
        self.voters.append(replica)
        self._changed()

    def removed(self, replica: int) -> None:
        """A member is no member any more."""
        (self.voters if replica in self.voters else self.standbys).remove(replica)
        self._changed()

    def _changed(self) -> None:
        self.members_now[:] = self.members

    def __str__(self) -> str:
        return f"voters {self.voters}, standbys {self.standbys}"

    def bears(self, voters: list[int], dead: int = 0) -> bool:
        """Whether these voters survive the loss of all victims among them, beside some dead ones.

        An intact copy of every committed entry has to be left, and enough voters that commit and
        elect while the victims have no vote. Of two voters none may lose its disk: the other one
        cannot admit it again alone.
        """
        struck = len(set(voters) & set(self.victims))
        if len(voters) <= _PAIR:
            return struck == 0 and dead == 0
        quorums = QUORUMS[len(voters)]
        whole = len(voters) - dead - struck
        needed = max(quorums.replication, quorums.view_change)
        return quorums.replication - dead - struck > 0 and (dead == 0 or whole >= needed)
