"""A primary that is told to stop has another replica lead first.

Callers wait less for a successor that was told than for one that has to find out. Nothing depends
on it: a replica that stops without a successor is replaced as one that died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from coordinator import vsr
from coordinator.app.members import Members
from coordinator.replica.driver import Driver
from coordinator.replica.fitness import Fitness
from coordinator.replica.ports import Progress
from viewstamp.telemetry import fields

# Twenty times what it takes on an idle machine; on a busy one, callers are no worse off without it.
HAND_OVER_MS: Final = 3_000
_LOOK_MS: Final = 10
_REASON: Final = "it was told to stop"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HandOverPorts:
    """What is known of the replica, and what is asked of it.

    `leads` says whether it is the primary, `has_fit_peer` whether another voter could lead,
    `is_connected` whether any other replica is connected. `leave` gives up leading for good, with
    the reason.
    """

    progress: Callable[[], Progress]
    replica_id: int
    leads: Callable[[], bool]
    has_fit_peer: Callable[[], bool]
    is_connected: Callable[[], bool]
    leave: Callable[[str], None]


def hand_over_ports(driver: Driver, members: Members, fitness: Fitness) -> HandOverPorts:
    """Return the ports of one of several replicas."""
    return HandOverPorts(
        progress=lambda: driver.progress,
        replica_id=members.replica_id,
        leads=lambda: driver.serving.is_primary,
        has_fit_peer=members.reports.has_fit_peer,
        is_connected=members.is_connected,
        leave=fitness.leave,
    )


async def hand_over(ports: HandOverPorts) -> None:
    """Wait until another replica leads, at most HAND_OVER_MS; at once if none could or need."""
    if not (ports.leads() and ports.has_fit_peer()):
        return
    # Not `Abdicate`: a replica that stops must not lead a later view, either.
    ports.leave(_REASON)
    try:
        async with asyncio.timeout(HAND_OVER_MS / 1000):
            # In a view change no replica says that it could lead. Links break without a word.
            while ports.is_connected() and not _is_led_by_another(ports):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_MS / 1000)
    except TimeoutError:
        _log.warning("no other replica took over in time", extra=fields(waited_ms=HAND_OVER_MS))
        return
    if _is_led_by_another(ports):
        _log.info("another replica leads", extra=fields(primary=ports.progress().primary))


def _is_led_by_another(ports: HandOverPorts) -> bool:
    progress = ports.progress()
    is_normal = progress.status is vsr.ReplicaStatus.NORMAL
    return is_normal and progress.primary != ports.replica_id
