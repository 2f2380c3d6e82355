"""What the driver tells the core: one of these per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from coordinator.vsr.effects import CoreState
from coordinator.vsr.messages import Message, Prepare, PrepareHeader


@dataclass(frozen=True, slots=True)
class RecordId:
    """One record of the journal. The checksum tells two records of one op apart."""

    op: int
    checksum: bytes


@dataclass(frozen=True, slots=True)
class Start:
    """The first event: what this process found on its disk.

    `superblock` is None if none was ever written. `suffix` holds the headers of the journal's last
    entries, oldest first: all of them, or at least as many as a pipeline has prepares. A member of
    a larger cluster gives one more, since it may have to discard a pipeline. If there are damaged
    records it also gives every header above the base that the log tail keeps: each names the
    checksum of the entry before it. Everything in the journal up to the last header is verified.
    `boot_nonce` is 16 random bytes, new for every start of the process. `base_op` is the op to
    which the stages were restored from a snapshot, 0 for none. Entries up to it are committed;
    those after it are handed out again.

    `faulty` are the ops above `base_op` whose records are damaged, in order; the suffix leaves them
    out, and may end before them. `faulty_checksums` maps such ops to the checksum that the next
    entry or the frame of the damaged record names: peers give such an entry without knowing that it
    is committed. `head_uncertain` says that there may have been entries above the last op known.
    For a lone replica none of these is set: its driver refuses to start.

    `changes` are the entries of the suffix that end an epoch, with their bodies. `disk_id` is the
    random id of this data directory.
    """

    superblock: CoreState | None
    suffix: tuple[PrepareHeader, ...]
    boot_nonce: bytes
    base_op: int = 0
    faulty: tuple[int, ...] = ()
    head_uncertain: bool = False
    faulty_checksums: tuple[tuple[int, bytes], ...] = ()
    changes: tuple[Prepare, ...] = ()
    disk_id: bytes = b""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; `now_ticks` of the step says how much."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived from another replica: authenticated, and its checksums verified."""

    message: Message


@dataclass(frozen=True, slots=True)
class ClientBatch:
    """The commands of one future entry; `wall_clock_us` is microseconds since 1970.

    The core believes it, so the shell must not take it from one clock alone
    (`coordinator/replica/cluster_clock.py`). 0 lets log time stand still.
    `feature_level` is the level that the log has decided, as far as the shell has applied it. The
    entry's header records it, unless the previous entry has a higher one. With `ends_epoch` the
    body says who has a vote in the next epoch (`membership.Change`).
    """

    body: bytes
    command_count: int
    wall_clock_us: int
    feature_level: int = 0
    ends_epoch: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The body of the Founded entry, in answer to `BootstrapReady`."""

    body: bytes
    wall_clock_us: int


@dataclass(frozen=True, slots=True)
class RecordsDurable:
    """These records of earlier `PersistPrepares` survive a crash from now on."""

    records: tuple[RecordId, ...]


@dataclass(frozen=True, slots=True)
class SuperblockDurable:
    """The `state` of the outstanding `PersistSuperblock` survives a crash from now on."""

    state: CoreState


@dataclass(frozen=True, slots=True)
class PrepareApplied:
    """Entry `op` went through every stage; entries are applied in op order."""

    op: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """The `DiscardAfter(op)` is carried out, and survives a crash from now on."""

    op: int


@dataclass(frozen=True, slots=True)
class RecordFaulty:
    """Reading entry `op` of the journal failed: its record is damaged.

    With `has_room` the journal has room to rewrite the entry, if it is still in memory. Without it
    a peer sends the entry once there is room. Until `Discarded`, a read that began before the
    `DiscardAfter` may report an entry that it removes.
    """

    op: int
    has_room: bool = True


@dataclass(frozen=True, slots=True)
class Abdicate:
    """Give up being primary once: a step-down, or a graceful stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """This replica should not lead until `Fit`: its stages cannot apply, or its disk is full.

    Give it only while another replica is fit: among unfit replicas this one leads as well as any.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Fit:
    """The reason for `Unfit` is over, or no other replica is fitter."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """The process of this replica seems to be gone: both of its connections to here broke.

    The suspicion may be wrong, and may be left out: it only saves waiting for the timeout.
    """

    replica: int


@dataclass(frozen=True, slots=True)
class ReadIndexRequested:
    """A linearizable read wants to know how far the log must be applied; the token is echoed."""

    token: int


@dataclass(frozen=True, slots=True)
class ReadIndexAbandoned:
    """Nobody waits for the index of this read any more. It may have been granted already."""

    token: int


Event: TypeAlias = (
    Start
    | Tick
    | Received
    | ClientBatch
    | Found
    | RecordsDurable
    | SuperblockDurable
    | PrepareApplied
    | Discarded
    | RecordFaulty
    | Abdicate
    | Unfit
    | Fit
    | Suspect
    | ReadIndexRequested
    | ReadIndexAbandoned
)
