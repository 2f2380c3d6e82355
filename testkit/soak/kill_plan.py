"""Who dies in which round, and who is spared. Pure.

Kinds of processes take turns; each dies at the primary, and the next time at a backup.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from testkit.torture.cluster import REPLICAS
from viewstamp.cluster.local import COORDINATOR
from viewstamp.routing import SERVICE_NAMES

# A coordinator dies as often as all services together: it has the log.
VICTIMS: Final = tuple(name for service in SERVICE_NAMES for name in (COORDINATOR, service))


class RoundKill(NamedTuple):
    """The end of a process: its name, whether at the primary, and the replica that is spared."""

    name: str
    on_primary: bool
    spared: int


def kill_of(number: int, rounds_per_stretch: int) -> RoundKill:
    """Return the kill of a round, counted from 0; a replica is spared for a stretch of rounds."""
    return RoundKill(
        name=VICTIMS[number % len(VICTIMS)],
        on_primary=number // len(VICTIMS) % 2 == 0,
        spared=number // rounds_per_stretch % REPLICAS,
    )


def victim(kill: RoundKill, primary: int | None, number: int) -> int:
    """Return the replica that is hit; without a known primary it is any that is not spared."""
    others = [replica for replica in range(REPLICAS) if replica != kill.spared]
    if kill.on_primary and primary in others:
        return primary
    backups = [replica for replica in others if replica != primary]
    return backups[number % len(backups)]
