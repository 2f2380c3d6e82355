"""Messages between replicas beside the core's: the shells' own, and the union.

Like the core's messages they are frozen and name cluster and sender.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from coordinator.mux.catalog_types import TaskSnapshot
from coordinator.peers.hello import NO_DISK, DiskMark
from coordinator.vsr.messages import Message


@dataclass(frozen=True, slots=True)
class SnapshotDurableMessage:
    """A generation is durable on the sender, with this root of 32 bytes and these sections.

    To the primary, repeated until the snapshot is decided and after each view change.
    """

    cluster_id: bytes
    from_replica: int
    generation: int
    root: bytes
    tasks: tuple[TaskSnapshot, ...]


@dataclass(frozen=True, slots=True)
class ReplicaReportMessage:
    """How far the sender is, and where it serves clients. Reports may be lost.

    `status` is the number of a `cluster.v1.ReplicaStatus`; `generation` the snapshot from which it
    would restart, 0 for none; `client_address` is HOST:PORT. `unfit` is what speaks against the
    sender as primary, empty for nothing. `feature_level_max` is the highest level that its
    coordinator and its services know. `clock_us` is its clock, 0 from a build that tells none.
    `applied_digest` is the sender's digest of what the log led to, at op `applied`, and
    `common_digest` the one at `common_op`, an op that other replicas tell, too. They are empty from
    a build that makes none. `disk` tells how far the data directory has come, which is remembered.
    `disk_id` stands for that directory, also while it has no vote. `lacks_vote`: the sender should
    have one, and has none yet.
    """

    cluster_id: bytes
    from_replica: int
    status: int
    view: int
    op: int
    commit: int
    applied: int
    generation: int
    client_address: str
    unfit: str = ""
    feature_level_max: int = 0
    clock_us: int = 0
    applied_digest: bytes = b""
    common_op: int = 0
    common_digest: bytes = b""
    disk: DiskMark = NO_DISK
    disk_id: bytes = b""
    lacks_vote: bool = False


ShellMessage: TypeAlias = SnapshotDurableMessage | ReplicaReportMessage
PeerMessage: TypeAlias = Message | ShellMessage
