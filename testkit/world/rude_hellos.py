"""What programs that are no replicas of the cluster say to a port for replicas, and what is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from coordinator.peers.codec import DecodeRule
from coordinator.peers.hello import DIGEST_BYTES, HelloRefusal
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.api.snapshots.v1.snapshots_service_pb2 import SnapshotTask
from viewstamp.format.prepare import HEADER_BYTES
from viewstamp.limits import BOOT_NONCE_BYTES, CLUSTER_ID_BYTES

_OTHER_NUMBER: Final = 99
_LONG: Final = "long" * 10_000


class RudeHello(NamedTuple):
    """Changes of a hello that would be welcome, and why it is refused with them."""

    what: str
    changed: Mapping[str, Any]
    due: HelloRefusal


HELLOS: Final = (
    RudeHello("another version", {"wire_version": _OTHER_NUMBER}, HelloRefusal.OTHER_WIRE_VERSION),
    RudeHello("a short nonce", {"boot_nonce": b"short"}, HelloRefusal.MALFORMED),
    RudeHello("a long id of a disk", {"disk": {"disk_id": b"long" * 9}}, HelloRefusal.MALFORMED),
    RudeHello(
        "another cluster", {"cluster_id": b"\x66" * CLUSTER_ID_BYTES}, HelloRefusal.OTHER_CLUSTER
    ),
    RudeHello("another number of replicas", {"replica_count": 7}, HelloRefusal.OTHER_REPLICA_COUNT),
    RudeHello("another number of standbys", {"standby_count": 5}, HelloRefusal.OTHER_STANDBY_COUNT),
    RudeHello(
        "other limits",
        {"configuration_digest": b"\x66" * DIGEST_BYTES},
        HelloRefusal.OTHER_CONFIGURATION,
    ),
    RudeHello("an unknown replica", {"replica_id": _OTHER_NUMBER}, HelloRefusal.UNKNOWN_REPLICA),
    RudeHello("another addressee", {"to_replica_id": _OTHER_NUMBER}, HelloRefusal.WRONG_ADDRESSEE),
)
FIRST_PACKETS: Final[tuple[tuple[str, bytes], ...]] = (
    ("rubbish", b"\xff"),
    ("an empty packet", b""),
    (
        "a message instead of a hello",
        pb.ExchangeRequest(messages=[pb.ReplicaMessage()]).SerializeToString(),
    ),
)
"""What no hello is in. A replica refuses it as one of another version."""


def welcome_hello(own: pb.ReplicaHello, replica: int, other: int) -> pb.ReplicaHello:
    """Return what a replica would say to another one, given what that one says of itself."""
    result = pb.ReplicaHello()
    result.CopyFrom(own)
    result.replica_id, result.to_replica_id = other, replica
    result.boot_nonce = b"\x66" * BOOT_NONCE_BYTES
    return result


def changed_hello(hello: pb.ReplicaHello, changed: Mapping[str, Any]) -> pb.ReplicaHello:
    """Return a hello with other fields."""
    result = pb.ReplicaHello()
    result.CopyFrom(hello)
    for name, value in changed.items():
        if isinstance(value, Mapping):
            getattr(result, name).MergeFrom(pb.DiskMark(**value))
        else:
            setattr(result, name, value)
    return result


def _packet(**kind: Any) -> bytes:
    return pb.ExchangeRequest(messages=[pb.ReplicaMessage(**kind)]).SerializeToString()


_UNKNOWN_STAGE: Any = _OTHER_NUMBER
_TASK: Final = SnapshotTask(stage=_UNKNOWN_STAGE)
RUDE_PACKETS: Final[tuple[tuple[bytes, DecodeRule], ...]] = (
    (b"\xff", DecodeRule.MALFORMED_PACKET),
    (_packet(), DecodeRule.UNKNOWN_KIND),
    (_packet(commit=pb.Commit(checksum=b"short")), DecodeRule.WRONG_LENGTH),
    (_packet(prepare=pb.Prepare(prepare=b"no entry")), DecodeRule.CORRUPT_PREPARE),
    (_packet(do_view_change=pb.DoViewChange(headers=[b"short"])), DecodeRule.WRONG_LENGTH),
    (
        _packet(do_view_change=pb.DoViewChange(headers=[bytes(HEADER_BYTES)])),
        DecodeRule.CORRUPT_HEADER,
    ),
    (
        _packet(snapshot_durable=pb.SnapshotDurable(root=bytes(32), tasks=[_TASK])),
        DecodeRule.UNKNOWN_STAGE,
    ),
    (_packet(replica_report=pb.ReplicaReport(client_address=_LONG)), DecodeRule.WRONG_LENGTH),
    (
        _packet(replica_report=pb.ReplicaReport(disk=pb.DiskMark(disk_id=b"short"))),
        DecodeRule.WRONG_LENGTH,
    ),
)
"""Packets of a defective replica, and the rule by which each is dropped."""


class RudeRead(NamedTuple):
    """A request for a file of a snapshot: its method, and how it is made of a hello."""

    what: str
    method: str
    make: Callable[[pb.ReplicaHello], bytes]
    due: str
    """What the status has to be called."""


def _manifest(hello: pb.ReplicaHello) -> bytes:
    request = pb.ReadManifestRequest(hello=hello, generation=_OTHER_NUMBER * _OTHER_NUMBER)
    return request.SerializeToString()


def _layer(hello: pb.ReplicaHello) -> bytes:
    request = pb.ReadLayerRequest(hello=hello, generation=_OTHER_NUMBER, digest=b"unknown")
    return request.SerializeToString()


READS: Final = (
    RudeRead("rubbish", "ReadManifest", lambda _: b"\xff", "INVALID_ARGUMENT"),
    RudeRead("rubbish", "ReadLayer", lambda _: b"\xff", "INVALID_ARGUMENT"),
    RudeRead(
        "without a hello",
        "ReadManifest",
        lambda _: pb.ReadManifestRequest().SerializeToString(),
        "PERMISSION_DENIED",
    ),
    RudeRead("of an unknown snapshot", "ReadManifest", _manifest, "NOT_FOUND"),
    RudeRead("of an unknown layer", "ReadLayer", _layer, "NOT_FOUND"),
)
