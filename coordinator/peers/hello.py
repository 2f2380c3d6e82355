"""Who connects, and whether it may: the first thing on every stream between replicas.

The reasons for a refusal are a table, tested in order: another wire version first, since nothing
else need mean the same there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Final, TypeAlias

from coordinator.base.roster import Roster
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.limits import BOOT_NONCE_BYTES, CLUSTER_ID_BYTES

WIRE_VERSION: Final = 2
DIGEST_BYTES: Final = 32
DISK_ID_BYTES: Final = 16


class HelloRefusal(Enum):
    """Why a hello was refused; the value is the reason's name in status, logs and metrics."""

    MALFORMED = "malformed"
    OTHER_WIRE_VERSION = "other_wire_version"
    OTHER_CLUSTER = "other_cluster"
    OTHER_REPLICA_COUNT = "other_replica_count"
    OTHER_CONFIGURATION = "other_configuration"
    UNKNOWN_REPLICA = "unknown_replica"
    OWN_REPLICA = "own_replica"
    WRONG_ADDRESSEE = "wrong_addressee"
    WRONG_CERTIFICATE = "wrong_certificate"
    DUPLICATE_REPLICA = "duplicate_replica"
    OTHER_STANDBY_COUNT = "other_standby_count"
    MENDING = "mending"
    OLD_BUILD = "old_build"
    OLDER_DIRECTORY = "older_directory"
    EXPIRED_CERTIFICATE = "expired_certificate"
    REMOVED_REPLICA = "removed_replica"


@dataclass(frozen=True, slots=True)
class DiskMark:
    """How far the sender's data directory has come; all empty if it has none, or does not say.

    `disk_id` stands for the directory, and is new for each one that begins blank. `view` and
    `log_view` are those of its superblock, which never fall. `journal_sequence` is that of its
    journal's last durable record, `last_sequence` of the last one that is there or known to be
    lost. Neither falls as long as `damaged_start` is the same, which grows with each start that
    finds the end of the journal damaged. `boot_nonce` is that of the start that says this.
    """

    disk_id: bytes = b""
    view: int = 0
    log_view: int = 0
    damaged_start: int = 0
    journal_sequence: int = 0
    last_sequence: int = 0
    boot_nonce: bytes = b""


NO_DISK: Final = DiskMark()


@dataclass(frozen=True, slots=True)
class Hello:
    """Who connects, and to whom. `to_replica` is the id of the intended replica.

    `replica_count` and `standby_count` are those with which the cluster was founded. They say who
    belongs to it as long as it is in epoch 0.
    """

    cluster_id: bytes
    wire_version: int
    replica_id: int
    replica_count: int
    configuration_digest: bytes
    boot_nonce: bytes
    to_replica: int
    standby_count: int = 0
    feature_level_max: int = 0  # the highest that the build knows
    disk: DiskMark = NO_DISK
    epoch: int = 0
    peer_address: str = ""

    def to(self, replica: int) -> Hello:
        """Return the hello for another replica."""
        return replace(self, to_replica=replica)

    def on(self, disk: DiskMark, epoch: int = 0) -> Hello:
        """Return the hello of a replica in an epoch, whose directory has come this far."""
        return replace(self, disk=disk, epoch=epoch)


@dataclass(frozen=True, slots=True)
class RefusedHello:
    """A hello that is not accepted: the reason, and the difference, for people."""

    reason: HelloRefusal
    detail: str


def encode_hello(hello: Hello) -> pb.ReplicaHello:
    """Return the hello as the wire carries it."""
    return pb.ReplicaHello(
        cluster_id=hello.cluster_id,
        wire_version=hello.wire_version,
        replica_id=hello.replica_id,
        replica_count=hello.replica_count,
        configuration_digest=hello.configuration_digest,
        boot_nonce=hello.boot_nonce,
        to_replica_id=hello.to_replica,
        standby_count=hello.standby_count,
        feature_level_max=hello.feature_level_max,
        disk=encode_disk(hello.disk),
        epoch=hello.epoch,
        peer_address=hello.peer_address,
    )


def encode_disk(mark: DiskMark) -> pb.DiskMark:
    """Return the mark as the wire carries it."""
    return pb.DiskMark(
        disk_id=mark.disk_id,
        view=mark.view,
        log_view=mark.log_view,
        damaged_start=mark.damaged_start,
        journal_sequence=mark.journal_sequence,
        last_sequence=mark.last_sequence,
        boot_nonce=mark.boot_nonce,
    )


def decode_disk(message: pb.DiskMark) -> DiskMark:
    """Return the received mark."""
    return DiskMark(
        message.disk_id,
        message.view,
        message.log_view,
        message.damaged_start,
        message.journal_sequence,
        message.last_sequence,
        message.boot_nonce,
    )


def decode_hello(message: pb.ReplicaHello) -> Hello:
    """Return the received hello; `judge` finds what is wrong with it."""
    return Hello(
        cluster_id=message.cluster_id,
        wire_version=message.wire_version,
        replica_id=message.replica_id,
        replica_count=message.replica_count,
        configuration_digest=message.configuration_digest,
        boot_nonce=message.boot_nonce,
        to_replica=message.to_replica_id,
        standby_count=message.standby_count,
        feature_level_max=message.feature_level_max,
        disk=decode_disk(message.disk),
        epoch=message.epoch,
        peer_address=message.peer_address,
    )


def judge(own: Hello, theirs: Hello, level_in_force: int = 0) -> RefusedHello | None:
    """Return why the replica with the hello `own` refuses `theirs`; None if it is welcome.

    `level_in_force` is the feature level that the log has reached here, 0 if unknown.
    """
    for reason, rule in _RULES:
        detail = rule(own, theirs)
        if detail is not None:
            return RefusedHello(reason, detail)
    if theirs.feature_level_max < level_in_force:
        return RefusedHello(HelloRefusal.OLD_BUILD, _old_build(theirs, level_in_force))
    return None


def judge_member(roster: Roster, theirs: Hello) -> RefusedHello | None:
    """Return why a replica of a later epoch refuses one that does not belong to it.

    A replica of an epoch that is still to come here is welcome, whoever it is: it may be the only
    one that can tell of that epoch.
    """
    replica, epoch = theirs.replica_id, roster.epoch
    if replica in (*roster.members, *roster.former) or theirs.epoch > epoch:
        return None
    return RefusedHello(
        HelloRefusal.REMOVED_REPLICA,
        f"replica {replica} is no member of epoch {epoch}: it was removed, or never added; stop its"
        " process, and add a replica with an empty directory if you need one",
    )


def judge_answer(own: Hello, answer: Hello) -> RefusedHello | None:
    """Return what is wrong with the hello of the replica that accepted `own`."""
    detail = _malformed(own, answer)
    if detail is None and answer.replica_id != own.to_replica:
        detail = f"replica {answer.replica_id} answers for replica {own.to_replica}"
    return None if detail is None else RefusedHello(HelloRefusal.MALFORMED, detail)


def encode_verdict(own: Hello, refusal: RefusedHello | None) -> pb.ExchangeResponse:
    """Return the answer to a hello."""
    if refusal is None:
        return pb.ExchangeResponse(hello=encode_hello(own))
    return pb.ExchangeResponse(
        hello=encode_hello(own), refusal=_NUMBERS[refusal.reason], detail=refusal.detail
    )


def decode_verdict(response: pb.ExchangeResponse) -> RefusedHello | None:
    """Return why the other side refused, None if it did not."""
    if response.refusal == pb.HELLO_REFUSAL_UNSPECIFIED:
        return None
    reason = _REASONS.get(response.refusal, HelloRefusal.MALFORMED)
    return RefusedHello(reason, response.detail)


# --- The rules: what differs, or None ---

_Rule: TypeAlias = Callable[[Hello, Hello], str | None]


def _other_wire_version(own: Hello, theirs: Hello) -> str | None:
    if own.wire_version == theirs.wire_version:
        return None
    return f"wire version {theirs.wire_version}, this replica speaks {own.wire_version}"


def _malformed(_: Hello, theirs: Hello) -> str | None:
    lengths = (
        ("cluster_id", theirs.cluster_id, CLUSTER_ID_BYTES),
        ("configuration_digest", theirs.configuration_digest, DIGEST_BYTES),
        ("boot_nonce", theirs.boot_nonce, BOOT_NONCE_BYTES),
        ("disk_id", theirs.disk.disk_id, DISK_ID_BYTES if theirs.disk.disk_id else 0),
    )
    wrong = (
        f"{name} has {len(value)} bytes, not {due}"
        for name, value, due in lengths
        if len(value) != due
    )
    return next(wrong, None)


def _other_cluster(own: Hello, theirs: Hello) -> str | None:
    if own.cluster_id == theirs.cluster_id:
        return None
    return f"cluster {theirs.cluster_id.hex()}, this replica is of {own.cluster_id.hex()}"


def _other_replica_count(own: Hello, theirs: Hello) -> str | None:
    if own.replica_count == theirs.replica_count or _have_changed(own, theirs):
        return None
    return f"told of {theirs.replica_count} replicas, this one of {own.replica_count}"


def _other_standby_count(own: Hello, theirs: Hello) -> str | None:
    if own.standby_count == theirs.standby_count or _have_changed(own, theirs):
        return None
    return (
        f"told of {theirs.standby_count} standbys, this one of {own.standby_count}: give every"
        " replica the same --standby flags"
    )


def _other_configuration(own: Hello, theirs: Hello) -> str | None:
    if own.configuration_digest == theirs.configuration_digest:
        return None
    found, due = theirs.configuration_digest.hex()[:16], own.configuration_digest.hex()[:16]
    return (
        f"digest of limits {found}, this replica's is {due}: run builds with equal limits, and with"
        " the same --journal and --journal-ring-bytes"
    )


def _have_changed(own: Hello, theirs: Hello) -> bool:
    """The members of one of the two are no longer those that founded the cluster."""
    return own.epoch > 0 or theirs.epoch > 0


def _unknown_replica(own: Hello, theirs: Hello) -> str | None:
    if _have_changed(own, theirs):
        return None  # the roster says who is known, or whoever is ahead
    if theirs.replica_id < own.replica_count + own.standby_count:
        return None
    beside = f" and {own.standby_count} standbys" if own.standby_count else ""
    return (
        f"replica {theirs.replica_id} of a cluster of {own.replica_count}{beside}: ids count from 0"
    )


def _own_replica(own: Hello, theirs: Hello) -> str | None:
    if own.replica_id != theirs.replica_id:
        return None
    return f"replica {own.replica_id} is this one: two processes have the same --replica-id"


def _wrong_addressee(own: Hello, theirs: Hello) -> str | None:
    if own.replica_id == theirs.to_replica:
        return None
    return f"meant for replica {theirs.to_replica}, this is {own.replica_id}: correct an address"


def _old_build(theirs: Hello, level_in_force: int) -> str:
    return (
        f"feature level {level_in_force} is in force, and the build of replica {theirs.replica_id}"
        f" knows levels up to {theirs.feature_level_max}: start a newer one; its data directory is"
        " good"
    )


_RULES: Final[tuple[tuple[HelloRefusal, _Rule], ...]] = (
    (HelloRefusal.OTHER_WIRE_VERSION, _other_wire_version),
    (HelloRefusal.MALFORMED, _malformed),
    (HelloRefusal.OTHER_CLUSTER, _other_cluster),
    (HelloRefusal.OTHER_REPLICA_COUNT, _other_replica_count),
    (HelloRefusal.OTHER_STANDBY_COUNT, _other_standby_count),
    (HelloRefusal.OTHER_CONFIGURATION, _other_configuration),
    (HelloRefusal.UNKNOWN_REPLICA, _unknown_replica),
    (HelloRefusal.OWN_REPLICA, _own_replica),
    (HelloRefusal.WRONG_ADDRESSEE, _wrong_addressee),
)
_NUMBERS: Final = MappingProxyType(
    {
        HelloRefusal.MALFORMED: pb.HELLO_REFUSAL_MALFORMED,
        HelloRefusal.OTHER_WIRE_VERSION: pb.HELLO_REFUSAL_OTHER_WIRE_VERSION,
        HelloRefusal.OTHER_CLUSTER: pb.HELLO_REFUSAL_OTHER_CLUSTER,
        HelloRefusal.OTHER_REPLICA_COUNT: pb.HELLO_REFUSAL_OTHER_REPLICA_COUNT,
        HelloRefusal.OTHER_CONFIGURATION: pb.HELLO_REFUSAL_OTHER_CONFIGURATION,
        HelloRefusal.UNKNOWN_REPLICA: pb.HELLO_REFUSAL_UNKNOWN_REPLICA,
        HelloRefusal.OWN_REPLICA: pb.HELLO_REFUSAL_OWN_REPLICA,
        HelloRefusal.WRONG_ADDRESSEE: pb.HELLO_REFUSAL_WRONG_ADDRESSEE,
        HelloRefusal.WRONG_CERTIFICATE: pb.HELLO_REFUSAL_WRONG_CERTIFICATE,
        HelloRefusal.DUPLICATE_REPLICA: pb.HELLO_REFUSAL_DUPLICATE_REPLICA,
        HelloRefusal.OTHER_STANDBY_COUNT: pb.HELLO_REFUSAL_OTHER_STANDBY_COUNT,
        HelloRefusal.MENDING: pb.HELLO_REFUSAL_MENDING,
        HelloRefusal.OLD_BUILD: pb.HELLO_REFUSAL_OLD_BUILD,
        HelloRefusal.OLDER_DIRECTORY: pb.HELLO_REFUSAL_OLDER_DIRECTORY,
        HelloRefusal.EXPIRED_CERTIFICATE: pb.HELLO_REFUSAL_EXPIRED_CERTIFICATE,
        HelloRefusal.REMOVED_REPLICA: pb.HELLO_REFUSAL_REMOVED_REPLICA,
    }
)
_REASONS: Final = MappingProxyType({number: reason for reason, number in _NUMBERS.items()})
