"""Who has a vote, and how a view number carries its epoch.

The log is divided into *epochs*. The last entry of each epoch, a *change*, says who has a vote in
the next one (VSR Revisited, section 7, with one log and one numbering of views). A view number has
its epoch in its upper 16 bits. So views of a later epoch are later views, in messages, entries and
superblocks alike, and a cluster that never changed has the numbers that it always had.

The order of `voters` is the order in which they lead views, so a replica's id is not its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from coordinator.vsr.quorum import QUORUMS, Quorums

EPOCH_SHIFT: Final = 48
EPOCH_MAX: Final = 2**16 - 2
"""The last epoch. The one after it has the number that stands for a missing vote."""

FOUNDING_EPOCH: Final = 0
NO_CHECKSUM: Final = bytes(16)
"""In place of the checksum of the entry before the first epoch, which does not exist."""


def epoch_of(view: int) -> int:
    """Return the epoch that a view belongs to."""
    return view >> EPOCH_SHIFT


def view_in(epoch: int, place: int) -> int:
    """Return the number of a view by its place in its epoch, from 0 on."""
    return (epoch << EPOCH_SHIFT) + place


def place_of(view: int) -> int:
    """Return the place of a view in its epoch: how many views the epoch had before it."""
    return view & ((1 << EPOCH_SHIFT) - 1)


@dataclass(frozen=True, slots=True)
class Membership:
    """Who belongs to the cluster in one epoch, which begins behind entry `began_op`.

    `began_checksum` is that of the entry. With it, one that is in the epoch before learns that an
    entry which it holds is committed.

    `first_view` is the view that the epoch begins with. Its primary is known without a vote,
    because its log is known: all of the earlier epoch. Ids are never given again.

    `disks` has, in order, each voter that was added after the cluster was founded, with the id of
    the data directory to which the vote was given. A replica that lost this disk since has
    forgotten what it vouched for, and gets its vote back as every replica that lost its disk.
    """

    first_view: int
    voters: tuple[int, ...]
    standbys: tuple[int, ...] = ()
    disks: tuple[tuple[int, bytes], ...] = ()
    began_op: int = 0
    began_checksum: bytes = NO_CHECKSUM

    def __post_init__(self) -> None:
        if len(self.voters) not in QUORUMS:
            raise ValueError(f"voters must be one of {list(QUORUMS)}: {len(self.voters)}")
        if len(set(self.members)) < len(self.members) or min(self.members) < 0:
            raise ValueError(f"each member has an id of its own, from 0 on: {self.members}")
        if not {replica for replica, _ in self.disks} <= set(self.voters):
            raise ValueError(f"disks are those of voters: {[each for each, _ in self.disks]}")
        if not 0 <= self.epoch <= EPOCH_MAX:
            raise ValueError(f"the epoch must be 0 to {EPOCH_MAX}: {self.epoch}")

    @property
    def epoch(self) -> int:
        """The number of the epoch: 0 for the one that began with the cluster."""
        return epoch_of(self.first_view)

    @property
    def members(self) -> tuple[int, ...]:
        """The ids of all replicas of this epoch: voters, then standbys."""
        return self.voters + self.standbys

    @property
    def quorums(self) -> Quorums:
        """How many voters must agree."""
        return QUORUMS[len(self.voters)]

    def names(self, replica: int, disk_id: bytes) -> bool:
        """Return whether this disk of this replica was given a vote."""
        return (replica, disk_id) in self.disks

    def primary_of(self, view: int) -> int:
        """Return the id of the primary of a view of this epoch."""
        return self.voters[place_of(view) % len(self.voters)]


ReadMembership: TypeAlias = Callable[[bytes], Membership]
"""Reads what the body of an epoch's last entry says of the next epoch."""


def founding(voter_count: int, standby_count: int = 0) -> Membership:
    """Return the membership of a new cluster: ids from 0 on, voters first."""
    ids = tuple(range(voter_count + standby_count))
    return Membership(view_in(FOUNDING_EPOCH, 0), ids[:voter_count], ids[voter_count:])
