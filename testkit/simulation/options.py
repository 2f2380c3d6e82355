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
from viewstamp.limits import FORFEIT_LAG_OPS, READ_INDEXES_WAITING_MAX


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
    MISROUTED = "misrouted"
    STRANGER = "stranger"
    HUNG_STAGE = "hung_stage"
    STEP_DOWN = "step_down"
    HOLED_LOG = "holed_log"
    OLDER_SUPERBLOCK = "older_superblock"
    CLOCK_JUMP = "clock_jump"


class Leaning(Enum):
    """Rare moments, each of which a seed leans on or does not; see `moments.py`."""

    STALLED = "stalled"
    DOZING = "dozing"
    ALONE_WITH_ITS_LOG = "alone with its log"
    FORGOTTEN_VIEW = "forgotten view"
    ECHOES = "echoes"
    PENDULUM = "pendulum"
    RETURN = "return"
    BROKEN_LINKS = "broken links"


# Those that the network has all the time; the others are events.
OF_THE_NETWORK: Final = (
    FaultKind.LOSS,
    FaultKind.DUPLICATION,
    FaultKind.DELAY,
    FaultKind.MISROUTED,
    FaultKind.STRANGER,
    FaultKind.HOLED_LOG,
)
# Those that are drawn apart, so that a seed has the others as it had before there were these.
APART: Final = (
    FaultKind.HUNG_STAGE,
    FaultKind.STEP_DOWN,
    FaultKind.HOLED_LOG,
    FaultKind.OLDER_SUPERBLOCK,
    FaultKind.CLOCK_JUMP,
)
# The first of them are drawn from one source with other options. Each later one has its own.
FROM_ONE_SOURCE: Final = (FaultKind.HUNG_STAGE, FaultKind.STEP_DOWN)
LEANINGS_APART: Final = (Leaning.BROKEN_LINKS,)
# Faults after which what was durable is gone. What they may take is in `atlas`.
OF_STORED_DATA: Final = frozenset(
    {FaultKind.ROT, FaultKind.MISDIRECTED, FaultKind.LOST_DISK, FaultKind.OLDER_SUPERBLOCK}
)
DAMAGES: Final = frozenset({FaultKind.ROT, FaultKind.MISDIRECTED})
FAULT_KINDS_MIN: Final = 3
COMMANDS_PER_REQUEST: Final = 2
READS_PERCENT: Final = 20
# The real stages are slow beside the compact ones, and are wrong more rarely.
DOMAINS_ONE_IN: Final = 6
DURATION_MS_MAX: Final = 30_000
# So many seeds in a hundred have sound disks: only there a part of a cluster must do alone.
SOUND_DISKS_PERCENT: Final = 30
# One seed in so many is crowded, one in so many is hurried: limits are met there.
CROWDED_ONE_IN: Final = 5
HURRIED_ONE_IN: Final = 6
BOOTSTRAP_STRUCK_ONE_IN: Final = 2
REPLICA_COUNTS: Final = (3, 3, 3, 3, 5, 5, 4, 6, 2, 1)
# Of the seeds with several replicas, half have standbys.
STANDBY_COUNTS: Final = (0, 0, 1, 2)
# One seed in so many has each of the faults that are drawn apart, and leans on each rare moment.
APART_ONE_IN: Final = 3
LEANING_ONE_IN: Final = 2
# How long, and with how many bytes of its journal, a replica waits for those that lag.
RETENTIONS: Final = ((0, 0), (0, 0), (1_000, 4_096), (5_000, 16_384), (60_000, 16_384))
FORFEIT_LAGS_OPS: Final = (12, FORFEIT_LAG_OPS)
# One seed with loss in so many loses most messages of one kind.
POORLY_CARRIED_ONE_IN: Final = 2
POORLY_CARRIED: Final = (
    "StartViewChangeMessage",
    "DoViewChangeMessage",
    "StartViewMessage",
    "RequestStartViewMessage",
    "RequestPrepareMessage",
    "RepairMessage",
    "PrepareOkMessage",
)


class Scale(Enum):
    """How long a run is."""

    QUICK = 120
    CAMPAIGN = 800


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
    is_ambushed: bool
    """Whether trouble likes to come when a view changes, and not alone."""
    is_bootstrap_struck: bool
    """Whether a process dies while the cluster is bootstrapped."""
    reads_waiting_max: int
    """How many reads a replica lets wait, in place of the product's limit."""
    standby_count: int = 0
    leanings: frozenset[Leaning] = frozenset()
    poorly_carried: str = ""
    """The kind of message of which most are lost; empty for none."""
    retain_ms: int = 0
    """How long a journal is kept for a replica that was heard, behind a snapshot."""
    retain_bytes: int = 0
    forfeit_lag_ops: int = FORFEIT_LAG_OPS
    """How far behind a replica does not lead, at most the product's limit."""
    safety_ms: int = 60_000
    liveness_ms: int = 120_000

    @property
    def machine_count(self) -> int:
        """The number of voters and standbys. The indexes of standbys follow those of voters."""
        return self.replica_count + self.standby_count

    @property
    def damaged_copies_max(self) -> int:
        """Of how many replicas one entry's copy may be damaged so that it can be recovered."""
        return QUORUMS[self.replica_count].replication - 1


def draw(seed: int, scale: Scale = Scale.QUICK, kinds: tuple[FaultKind, ...] = ()) -> Options:
    """Return what `seed` decides. `kinds` are the faults to choose from; none: all."""
    random = Random(f"options {seed}")
    replica_count = random.choice(REPLICA_COUNTS)
    chosen = kinds or tuple(FaultKind)
    faults = _faults(random, replica_count, tuple(kind for kind in chosen if kind not in APART))
    is_crowded = random.randrange(CROWDED_ONE_IN) == 0
    client_count = random.randint(20, 40) if is_crowded else random.randint(1, 10)
    fault_interval_ms = random.choice((100, 300, 1_000, 3_000))
    application = "domains" if random.randrange(DOMAINS_ONE_IN) == 0 else "chain"
    duration_ms = min(DURATION_MS_MAX, fault_interval_ms * random.randint(12, 40))
    if random.randrange(HURRIED_ONE_IN) == 0:
        duration_ms = 0
    apart = Random(f"apart {seed}")
    retain_ms, retain_bytes = apart.choice(RETENTIONS)
    return Options(
        seed=seed,
        replica_count=replica_count,
        client_count=client_count,
        commands=scale.value,
        faults=_together(faults, _faults_apart(apart, seed, replica_count, chosen)),
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
        is_ambushed=random.random() < 0.5,
        is_bootstrap_struck=_is_bootstrap_struck(random, replica_count, faults),
        reads_waiting_max=random.choice((2, READ_INDEXES_WAITING_MAX)),
        standby_count=_standbys(seed, replica_count),
        leanings=_leanings(apart, seed),
        poorly_carried=_poorly_carried(apart, faults),
        retain_ms=retain_ms,
        retain_bytes=retain_bytes,
        forfeit_lag_ops=apart.choice(FORFEIT_LAGS_OPS),
    )


def _is_bootstrap_struck(random: Random, count: int, faults: frozenset[FaultKind]) -> bool:
    """Two replicas cannot go on without one that may have forgotten what it said."""
    is_drawn = random.randrange(BOOTSTRAP_STRUCK_ONE_IN) == 0
    return is_drawn and FaultKind.CRASH in faults and count != 2


def _standbys(seed: int, replica_count: int) -> int:
    """Draw apart from the rest, which is the same with standbys and without."""
    return Random(f"standbys {seed}").choice(STANDBY_COUNTS) if replica_count > 1 else 0


def _faults_apart(
    shared: Random, seed: int, count: int, kinds: tuple[FaultKind, ...]
) -> frozenset[FaultKind]:
    drawn = []
    for kind in APART:
        source = shared if kind in FROM_ONE_SOURCE else Random(f"{kind.value} {seed}")
        if source.randrange(APART_ONE_IN) == 0:
            drawn.append(kind)
    return frozenset(kind for kind in drawn if kind in kinds and is_possible(kind, count))


def _together(faults: frozenset[FaultKind], apart: frozenset[FaultKind]) -> frozenset[FaultKind]:
    """An older superblock costs its disk, and with damage that could be too much to survive."""
    if faults & DAMAGES:
        apart -= {FaultKind.OLDER_SUPERBLOCK}
    return faults | apart


def _leanings(random: Random, seed: int) -> frozenset[Leaning]:
    apart = Random(f"leanings apart {seed}")
    drawn = {
        leaning: (apart if leaning in LEANINGS_APART else random).randrange(LEANING_ONE_IN)
        for leaning in Leaning
    }
    return frozenset(leaning for leaning in Leaning if drawn[leaning] == 0)


def _poorly_carried(random: Random, faults: frozenset[FaultKind]) -> str:
    kind = random.choice(POORLY_CARRIED)
    is_drawn = random.randrange(POORLY_CARRIED_ONE_IN) == 0
    return kind if is_drawn and FaultKind.LOSS in faults else ""


def _faults(random: Random, count: int, kinds: tuple[FaultKind, ...]) -> frozenset[FaultKind]:
    has_sound_disks = random.randrange(100) < SOUND_DISKS_PERCENT
    possible = [
        kind
        for kind in kinds
        if is_possible(kind, count) and not (has_sound_disks and kind in OF_STORED_DATA)
    ]
    fewest = min(FAULT_KINDS_MIN, len(possible))
    chosen = random.sample(possible, random.randint(fewest, len(possible)))
    if FaultKind.LOST_DISK in chosen and DAMAGES & set(chosen):
        # What is lost counts as damaged: both together could be more than a cluster survives.
        left_out = random.choice((DAMAGES, frozenset({FaultKind.LOST_DISK})))
        possible = [kind for kind in possible if kind not in left_out]
        chosen = [kind for kind in chosen if kind not in left_out]
        others = [kind for kind in possible if kind not in (*chosen, *OF_STORED_DATA)]
        chosen += others[: max(0, fewest - len(chosen))]
    return frozenset(chosen)


def is_possible(kind: FaultKind, replica_count: int) -> bool:
    """Whether a cluster of so many has, and survives, such a fault."""
    if kind in OF_STORED_DATA:
        return QUORUMS[replica_count].replication > 1 and replica_count > 2
    of_several = (*OF_THE_NETWORK, *APART, FaultKind.CLOG, FaultKind.PARTITION)
    return replica_count > 1 or kind not in of_several
