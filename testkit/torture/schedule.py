"""The faults of a round: which, when, on whom and for how long, from a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from viewstamp.routing import SERVICE_NAMES


class TortureFault(StrEnum):
    """The kinds of faults; the value is the name in a report."""

    KILL_COORDINATOR = "coordinator killed"
    KILL_SERVICE = "service killed"
    KILL_REPLICA = "all processes of a replica killed"
    KILL_COORDINATORS = "all coordinators killed"
    PAUSE_COORDINATOR = "coordinator paused"
    PAUSE_SERVICE = "service paused"
    ISOLATE = "replica cut off"
    SILENCE = "replica not heard by the others"
    DEAFEN = "replica that hears nobody"
    FILL_DISK = "disk full"
    JUMP_CLOCK = "clock jumped"


# How often each kind is drawn.
WEIGHTS: Final[Mapping[TortureFault, int]] = {
    TortureFault.KILL_COORDINATOR: 36,
    TortureFault.KILL_SERVICE: 28,
    TortureFault.KILL_REPLICA: 6,
    TortureFault.KILL_COORDINATORS: 3,
    TortureFault.PAUSE_COORDINATOR: 7,
    TortureFault.PAUSE_SERVICE: 4,
    TortureFault.ISOLATE: 5,
    TortureFault.SILENCE: 2,
    TortureFault.DEAFEN: 2,
    TortureFault.FILL_DISK: 4,
    TortureFault.JUMP_CLOCK: 3,
}
# Between one fault and the next.
GAP_MIN_S: Final = 0.3
GAP_MAX_S: Final = 3.0
# How long a fault lasts that is not over at once.
LASTS_MIN_S: Final = 0.2
LASTS_MAX_S: Final = 5.0
# Far shorter than the ten minutes after which an idle session ends.
JUMP_MAX_S: Final = 20.0
# The primary is hit in so many cases of a hundred; otherwise it is any replica.
PRIMARY_PERCENT: Final = 60


@dataclass(frozen=True, slots=True)
class ScheduledFault:
    """A fault: `gap_s` after the one before, on the primary or on a replica, for `lasts_s`."""

    kind: TortureFault
    gap_s: float
    on_primary: bool
    replica: int
    service: str
    lasts_s: float
    jump_s: float


def schedule(seed: int, seconds: float, replicas: int) -> list[ScheduledFault]:
    """Return the faults of so many seconds."""
    chosen = random.Random(seed)
    faults: list[ScheduledFault] = []
    while sum(fault.gap_s for fault in faults) < seconds:
        faults.append(_drawn(chosen, replicas))
    return faults


def _drawn(chosen: random.Random, replicas: int) -> ScheduledFault:
    (kind,) = chosen.choices(tuple(WEIGHTS), tuple(WEIGHTS.values()))
    return ScheduledFault(
        kind=kind,
        gap_s=chosen.uniform(GAP_MIN_S, GAP_MAX_S),
        on_primary=chosen.randrange(100) < PRIMARY_PERCENT,
        replica=chosen.randrange(replicas),
        service=chosen.choice(SERVICE_NAMES),
        lasts_s=chosen.uniform(LASTS_MIN_S, LASTS_MAX_S),
        jump_s=chosen.uniform(-JUMP_MAX_S, JUMP_MAX_S),
    )
