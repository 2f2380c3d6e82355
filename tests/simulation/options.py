"""What one seed decides before anything happens: the cluster, its load, and which faults it meets.

Every seed leans another way (swarm testing): a fault that is always there would hide what only
shows in its absence.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Final

from coordinator.vsr.quorum import QUORUMS


class FaultKind(Enum):
    """The faults, each of which a seed has or has not."""

    LOSS = "loss"
    DUPLICATION = "duplication"
    DELAY = "delay"
    CLOG = "clog"
    PARTITION = "partition"
    CRASH = "crash"
    POWER = "power"
    PAUSE = "pause"
    SLOW_DISK = "slow_disk"
    SLOW_STAGE = "slow_stage"
    ROT = "rot"
    MISDIRECTED = "misdirected"
    FULL_DISK = "full_disk"
    FAILED_SYNC = "failed_sync"
    LOST_DISK = "lost_disk"
    SUPERBLOCK_ROT = "superblock_rot"
    STAGE_CRASH = "stage_crash"


# Those that the network has all the time; the others are events.
OF_THE_NETWORK: Final = (FaultKind.LOSS, FaultKind.DUPLICATION, FaultKind.DELAY)
# Faults after which what was durable is gone. What they may take is in `atlas`.
OF_STORED_DATA: Final = frozenset({FaultKind.ROT, FaultKind.MISDIRECTED, FaultKind.LOST_DISK})
DAMAGES: Final = frozenset({FaultKind.ROT, FaultKind.MISDIRECTED})
FAULT_KINDS_MIN: Final = 3
COMMANDS_PER_REQUEST: Final = 2
READS_PERCENT: Final = 20
# The real stages are slow beside the compact ones, and are wrong more rarely.
DOMAINS_ONE_IN: Final = 4
DURATION_MS_MAX: Final = 20_000
REPLICA_COUNTS: Final = (3, 3, 3, 3, 5, 5, 4, 6, 2, 1)
# Of the seeds with several replicas, half have standbys.
STANDBY_COUNTS: Final = (0, 0, 1, 2)


class Scale(Enum):
    """How long a run is."""

    QUICK = 120
    CAMPAIGN = 500


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that is fixed for one run. Times are milliseconds of the simulation."""

    seed: int
    replica_count: int
    client_count: int
    commands: int
    faults: frozenset[FaultKind]
    segment_sectors: int
    delay_ms: int
    loss_percent: int
    duplication_percent: int
    sync_ms: int
    apply_ms: int
    think_ms: int
    is_bursty: bool
    fault_interval_ms: int
    application: str
    reads_percent: int
    snapshot_ops: int
    standby_count: int = 0
    safety_ms: int = 60_000
    liveness_ms: int = 120_000

    @property
    def machine_count(self) -> int:
        """Of replicas that vote, and standbys, whose indexes follow on theirs."""
        return self.replica_count + self.standby_count

    @property
    def damaged_copies_max(self) -> int:
        """Of how many replicas one entry's copy may be damaged so that it can be recovered."""
        return QUORUMS[self.replica_count].replication - 1


def draw(seed: int, scale: Scale = Scale.QUICK, kinds: tuple[FaultKind, ...] = ()) -> Options:
    """Return what `seed` decides. `kinds` are the faults to choose from; none: all."""
    random = Random(f"options {seed}")
    replica_count = random.choice(REPLICA_COUNTS)
    faults = _faults(random, replica_count, kinds or tuple(FaultKind))
    client_count = random.randint(1, 10)
    fault_interval_ms = random.choice((100, 300, 1_000, 3_000))
    application = "domains" if random.randrange(DOMAINS_ONE_IN) == 0 else "chain"
    duration_ms = min(DURATION_MS_MAX, fault_interval_ms * random.randint(8, 30))
    return Options(
        seed=seed,
        replica_count=replica_count,
        client_count=client_count,
        commands=scale.value,
        faults=faults,
        segment_sectors=random.choice((4, 8, 16, 64)),
        delay_ms=random.choice((1, 2, 5, 20)),
        loss_percent=random.randint(1, 25) if FaultKind.LOSS in faults else 0,
        duplication_percent=random.randint(1, 30) if FaultKind.DUPLICATION in faults else 0,
        sync_ms=random.choice((1, 2, 5, 15)),
        apply_ms=random.choice((0, 1, 3, 10)),
        think_ms=duration_ms * client_count * COMMANDS_PER_REQUEST // scale.value,
        is_bursty=random.random() < 0.5,
        fault_interval_ms=fault_interval_ms,
        application=application,
        snapshot_ops=random.choice((0, 16, 32, 64)) if application == "chain" else 0,
        reads_percent=READS_PERCENT if application == "chain" else 0,
        standby_count=_standbys(seed, replica_count),
    )


def _standbys(seed: int, replica_count: int) -> int:
    """Draw apart from the rest, which is the same with standbys and without."""
    return Random(f"standbys {seed}").choice(STANDBY_COUNTS) if replica_count > 1 else 0


def _faults(random: Random, count: int, kinds: tuple[FaultKind, ...]) -> frozenset[FaultKind]:
    possible = [kind for kind in kinds if is_possible(kind, count)]
    fewest = min(FAULT_KINDS_MIN, len(possible))
    chosen = random.sample(possible, random.randint(fewest, len(possible)))
    if FaultKind.LOST_DISK in chosen:
        # What is lost counts as damaged: both together could be more than a cluster survives.
        possible = [kind for kind in possible if kind not in DAMAGES]
        chosen = [kind for kind in chosen if kind not in DAMAGES]
        others = [kind for kind in possible if kind not in chosen]
        chosen += others[: max(0, fewest - len(chosen))]
    return frozenset(chosen)


def is_possible(kind: FaultKind, replica_count: int) -> bool:
    """Whether a cluster of so many has, and survives, such a fault."""
    if kind in OF_STORED_DATA:
        return QUORUMS[replica_count].replication > 1 and replica_count > 2
    of_several = (*OF_THE_NETWORK, FaultKind.CLOG, FaultKind.PARTITION)
    return replica_count > 1 or kind not in of_several
