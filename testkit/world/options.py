"""How large a run of the world is, and which faults happen in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from coordinator.vsr.quorum import QUORUMS
from testkit.world.fault_plan import EVERY_MS, KINDS, KINDS_OF_BROKERS, PlannedFault, plan
from testkit.world.ground import LASTS_MS_MAX
from viewstamp.format.record import SECTOR_BYTES
from viewstamp.limits import MIB, NAME_BYTES_MAX
from viewstamp.transports import GRPCIO, WIRE

# How long callers of a client pause at most between two calls: some hardly do.
PAUSES_MS: Final = (20, 100, 400)
# The commands of a world are small. So are its segments, and a journal soon drops some of them.
RECORD_BYTES_MAX: Final = 8 * SECTOR_BYTES
SEGMENT_BYTES: Final = 20 * SECTOR_BYTES
# A ring is so small that it goes round often, and is full now and then.
RING_BYTES: Final = 160 * SECTOR_BYTES
# How many commands there are between two snapshots, and how long log is kept for a silent replica:
# mostly so short that one that is away needs more than the others have kept.
_SNAPSHOT_COMMANDS: Final = (10, 30, 60, 200)
SNAPSHOT_NEVER: Final = 1_000_000
# How long a snapshot may take until it has failed; the product's minutes never pass in a run.
_SNAPSHOT_DEADLINES_MS: Final = (60_000, 60_000, 150)
_RETAIN_MS: Final = (0, 1_000, 60_000)
# A scrubber that goes round all the time, which the product does once a week.
_SCRUB_INTERVALS_MS: Final = (0, 0, 0, 2_000)
_REPLICAS: Final = (1, 2, 3, 3, 3, 3, 4, 5)
# Of the clusters whose members change more begin with one replica.
_ALONE_AT_FIRST_ONE_IN: Final = 3
_STANDBYS: Final = (0, 0, 0, 1, 2)
_EVERY_MS: Final = (EVERY_MS, EVERY_MS, (20, 600))
_SECONDS: Final = (2, 4, 8)
# A fault that is always there would hide what shows only without it.
_KINDS_MAX: Final = 8
_PIPELINES_ARE_FULL: Final = (True, True, False)
# Limits that only many callers reach, lowered, but not so far that the judged clients reach them.
_LIMITS: Final[tuple[tuple[str, ...], ...]] = (
    (),
    (),
    ("--quota-bytes-per-user=100000", "--quota-commands=3000", "--no-reflection"),
    ("--connections-max=40", "--channelz", "--snapshot-keep-last=1", "--snapshot-keep-daily=0"),
)
_WANDERERS: Final = (0, 0, 1, 2)
_WATCHERS: Final = (0, 0, 1, 2)
_MEMBERS: Final = (0, 0, 2, 3)
_BROKERS: Final = (0, 0, 0, 0, 0, 0, 2, 3, 4)
_NARROW_WATCHERS: Final = (0, 0, 0, 0, 1, 2)
_STRANGERS: Final = (0, 0, 1)
_RUDE_PEERS: Final = (0, 0, 1)
_WATCHED_ONE_IN: Final = 3
_OPERATORS: Final = (0, 0, 1)
_TRANSPORTS: Final = (GRPCIO, WIRE, WIRE)
_ENCRYPTED_ONE_IN: Final = 3
_ON_FILES_ONE_IN: Final = 6
_SMALL_ONE_IN: Final = 4
# What can happen on files: no machine loses power, and no disk fails or is replaced.
KINDS_ON_FILES: Final = frozenset(
    {
        *("kill", "kill_in_step", "stop", "kill_service", "kill_client", "pause", "pause_service"),
        *("pause_client", "hang_service", "slow_service", "away", "move", "step_down", "cut"),
        *("cut_client", "isolate", "partition", "lose", "lost_messages", "poorly_carried"),
        *("repeated_messages", "late_messages", "clog", "misrouted", "stranger", "holed_log"),
        *("echoes", "slow", "hang_disk", "stalled_disk", "crowd", "ambush", "forgotten_view"),
        *("dozing", "pendulum"),
    }
)
_CHANGING_ONE_IN: Final = 4
_COPIES_OF_ONE_VICTIM: Final = 2
_ALL_KINDS_ONE_IN: Final = 5
# A victim loses its disk, or some of what is on it.
_OF_DISKS: Final = frozenset(
    {"lose_disk", "older_superblock", "cornered", "rolled_back", "struck_transfer"}
)
_OF_RECORDS: Final = frozenset({"rot", "unreadable", "rot_snapshot", "misdirected", "lost_write"})


def flags(
    snapshot_commands: int = 60, retain_ms: int = 1_000, scrub_interval_ms: int = 0
) -> tuple[str, ...]:
    """Return the flags of each coordinator."""
    return (
        f"--snapshot-commands={snapshot_commands}",
        f"--snapshot-reserve-bytes={MIB}",
        f"--journal-retain-ms={retain_ms}",
        f"--scrub-interval-ms={scrub_interval_ms}",
    )


@dataclass(frozen=True)
class WorldOptions:
    """How large a run is. `replicas` vote, and `standbys` follow them.

    `faults` are the kinds that happen, and `every_ms` bounds the time between two. None lasts
    longer than `lasts_ms_max`, unless the shortest of its kind does. Planned faults whose numbers
    are in `dropped` do not happen. `flags` are those of each coordinator.
    """

    replicas: int = 3
    standbys: int = 0
    clients: int = 3
    readers: int = 1
    """How many of the clients only read."""
    callers: int = 2
    pauses_ms: Sequence[int] = PAUSES_MS
    """How long callers pause at most between two calls; each client draws one."""
    keys: int = 3
    name_bytes: int = 0
    """How long the names of topics are at least. Entries with long ones take more than a unit of
    512 bytes, so a loss of power can tear them."""
    seconds: int = 10
    wanderers: int = 0
    """Clients that use the whole interface."""
    operators: int = 0
    """Clients that do what only root does."""
    watchers: int = 0
    """Clients that follow every change."""
    narrow_watchers: int = 0
    """Clients that follow a part of the changes, of feeds that are short."""
    strangers: int = 0
    """Programs that are not ours, whose requests are refused."""
    rude_peers: int = 0
    """Programs at the ports for replicas that are none."""
    members: int = 0
    """Programs in one consumer group."""
    brokers: int = 0
    """Brokers that register, lead and follow partitions; at most four."""
    is_watched: bool = False
    """Whether coordinators have telemetry and an audit log."""
    faults: Sequence[str] = KINDS
    every_ms: tuple[int, int] = EVERY_MS
    dropped: frozenset[int] = frozenset()
    lasts_ms_max: int = LASTS_MS_MAX
    pipelines_are_full: bool = True
    """Whether each command that waits may be an entry beside those under way.

    The product gathers many for each, which the few callers of a world never have waiting. So
    there are as many entries under way as under a heavy load.
    """
    flags: Sequence[str] = flags()
    transport: str = GRPCIO
    """What carries calls: the library's rules, or our own transport as it ships."""
    is_encrypted: bool = False
    """Whether clients and replicas speak TLS, which our own transport alone does."""
    is_small: bool = False
    """Whether some limits are so small that few callers reach them."""
    is_on_files: bool = False
    """Whether replicas are on the file system of this machine, with all their programs."""
    is_changing: bool = False
    """Whether an operator adds, promotes and removes replicas while the cluster runs."""
    is_ring: bool = False
    """Whether journals are rings."""
    ring_bytes: int = RING_BYTES
    segment_bytes: int = SEGMENT_BYTES
    record_bytes_max: int = RECORD_BYTES_MAX

    def planned(self, seed: int) -> list[PlannedFault]:
        """Return the faults that happen, in the order of their times."""
        planned = plan(seed, self.faults, self.seconds, self.every_ms)
        return [fault for fault in planned if fault.number not in self.dropped]


def draw(seed: int) -> WorldOptions:
    """Return what a seed of a campaign decides."""
    random = Random(f"options {seed}")
    replicas = random.choice(_REPLICAS)
    standbys = random.choice(_STANDBYS)
    kinds = set(random.sample(KINDS, random.randint(1, _KINDS_MAX)))
    if random.randrange(_ALL_KINDS_ONE_IN) == 0:
        kinds = set(KINDS)
    if kinds & _OF_DISKS and QUORUMS[replicas].replication > _COPIES_OF_ONE_VICTIM:
        # On different victims both together could be more than a cluster survives.
        kinds -= _OF_RECORDS
    brokers = Random(f"brokers {seed}").choice(_BROKERS)
    is_on_files = Random(f"files {seed}").randrange(_ON_FILES_ONE_IN) == 0
    if is_on_files:
        kinds &= KINDS_ON_FILES
    visitors = Random(f"visitors {seed}")
    wanderers, operators = visitors.choice(_WANDERERS), visitors.choice(_OPERATORS)
    is_watched = visitors.randrange(_WATCHED_ONE_IN) == 0
    limits = visitors.choice(_LIMITS)
    # Records of short names are too small to be torn, and long names would reach the quotas.
    name_bytes = NAME_BYTES_MAX if "power_in_io" in kinds and not limits else 0
    changes = Random(f"changes {seed}")
    # Starts on files, and callers at ports for replicas, know of the founders alone.
    is_changing = changes.randrange(_CHANGING_ONE_IN) == 0 and not is_on_files
    if is_changing and changes.randrange(_ALONE_AT_FIRST_ONE_IN) == 0:
        replicas = 1
    transport = Random(f"transport {seed}").choice(_TRANSPORTS)
    is_encrypted = Random(f"encrypted {seed}").randrange(_ENCRYPTED_ONE_IN) == 0
    return WorldOptions(
        replicas=replicas,
        is_encrypted=is_encrypted and transport == WIRE,
        is_on_files=is_on_files,
        is_changing=is_changing,
        is_small=Random(f"small {seed}").randrange(_SMALL_ONE_IN) == 0,
        wanderers=wanderers,
        operators=operators,
        watchers=Random(f"watchers {seed}").choice(_WATCHERS),
        narrow_watchers=Random(f"narrow watchers {seed}").choice(_NARROW_WATCHERS),
        strangers=Random(f"strangers {seed}").choice(_STRANGERS),
        rude_peers=0 if is_changing else Random(f"rude peers {seed}").choice(_RUDE_PEERS),
        members=Random(f"members {seed}").choice(_MEMBERS),
        brokers=brokers,
        is_watched=is_watched,
        standbys=standbys if replicas > 1 else 0,
        clients=random.randint(2, 4),
        callers=random.randint(1, 3),
        keys=random.randint(1, 4),
        name_bytes=name_bytes,
        seconds=random.choice(_SECONDS),
        faults=(
            *(kind for kind in KINDS if kind in kinds),
            *(KINDS_OF_BROKERS if brokers else ()),
        ),
        every_ms=random.choice(_EVERY_MS),
        transport=transport,
        pipelines_are_full=Random(f"gathered {seed}").choice(_PIPELINES_ARE_FULL),
        flags=(
            *flags(
                random.choice(_SNAPSHOT_COMMANDS),
                random.choice(_RETAIN_MS),
                Random(f"scrub {seed}").choice(_SCRUB_INTERVALS_MS),
            ),
            f"--snapshot-deadline-ms={Random(f'deadline {seed}').choice(_SNAPSHOT_DEADLINES_MS)}",
            *limits,
        ),
    )
