"""Which stored data may be damaged where, so that every cluster can recover: stuck means a bug.

A committed entry lies on a replication quorum of disks. As long as fewer copies than that are
damaged, an intact one is left, whichever replicas were the quorum. Standbys are in none, and may
lose whatever they have.
"""

from __future__ import annotations

from random import Random

from testkit.simulation.options import Options


class Atlas:
    """Says who may lose what, for one run: the same few replicas throughout.

    To damage this entry here and that one there would be allowed by the same count. But a record
    whose frame is gone may have been any entry, and so it leaves the others of its disk in doubt.
    """

    def __init__(self, options: Options, random: Random) -> None:
        first = random.randrange(options.replica_count)
        # A lone replica can only lose what nobody was told of: its process, in the bootstrap.
        count = max(1, options.damaged_copies_max)
        self.voters = tuple((first + n) % options.replica_count for n in range(count))
        standbys = range(options.replica_count, options.machine_count)
        self.victims: tuple[int, ...] = (*self.voters, *standbys)

    def may_damage(self, replica: int) -> bool:
        """Whether this replica's disk may be damaged."""
        return replica in self.victims
