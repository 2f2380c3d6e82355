"""Messages between replicas as bytes, and back. A table says which fields each kind has.

Encoding yields one `ExchangeRequest` per message; joined, such encodings are one request, which is
how messages are packed without touching them. Prepares keep the bytes that journals hold.

Decoding takes any bytes and yields messages or named refusals, never an exception: prepares and
headers are verified here, at the boundary, and trusted afterwards. Cluster and sender are those of
the stream, which were checked when it began.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from google.protobuf.message import DecodeError

from coordinator.mux.applied_digests import APPLIED_DIGEST_BYTES
from coordinator.peers import messages as shell
from coordinator.peers.hello import DISK_ID_BYTES, DiskMark, decode_disk, encode_disk
from coordinator.peers.messages import PeerMessage
from coordinator.peers.outbox import OutboxLane, OutgoingMessage
from coordinator.stages.entities import task_message, tasks_of
from coordinator.vsr import messages as core
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.format import CHECKSUM_BYTES, FormatError
from viewstamp.format.prepare import (
    HEADER_BYTES,
    SealedHeader,
    SealedPrepare,
    decode_header,
    decode_prepare,
    encode_header,
    encode_prepare,
)
from viewstamp.limits import PIPELINE_PREPARES_MAX

ID_BYTES: Final = CHECKSUM_BYTES
ROOT_BYTES: Final = 32
REASON_CHARACTERS_MAX: Final = 200
ADDRESS_CHARACTERS_MAX: Final = 300  # a name of 253, brackets and a port fit
# A pipeline is sent to every backup, and perhaps again, but encoded once.
ENCODED_PREPARES_MAX: Final = 2 * PIPELINE_PREPARES_MAX


class DecodeRule(Enum):
    """Why received bytes are no message; the value is the name in status, logs and metrics."""

    MALFORMED_PACKET = "malformed_packet"
    UNKNOWN_KIND = "unknown_kind"
    WRONG_LENGTH = "wrong_length"
    CORRUPT_PREPARE = "corrupt_prepare"
    CORRUPT_HEADER = "corrupt_header"
    OTHER_CLUSTER = "other_cluster"
    UNKNOWN_STAGE = "unknown_stage"


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Bytes that were dropped, the rule, and what was wrong with them."""

    rule: DecodeRule
    detail: str


class Encoder:
    """Encodes one replica's messages. A prepare for several backups is encoded once."""

    def __init__(self, cluster_id: bytes, replica_id: int) -> None:
        self._cluster_id = cluster_id
        self._replica_id = replica_id
        self._encoded: dict[tuple[int, bytes], OutgoingMessage] = {}

    def encode(self, message: PeerMessage) -> OutgoingMessage:
        """Return a message ready to send. Raises ValueError for a message of another sender, or
        with impossible fields: that is a defect here, not of the network."""
        if (message.cluster_id, message.from_replica) != (self._cluster_id, self._replica_id):
            raise ValueError(
                f"{type(message).__name__} of replica {message.from_replica} cannot be sent by"
                f" replica {self._replica_id}"
            )
        if not isinstance(message, core.PrepareMessage):
            return _encode(message)
        key = (message.view, message.prepare.checksum)
        found = self._encoded.get(key)
        if found is None:
            found = self._encoded[key] = _encode(message)
            if len(self._encoded) > ENCODED_PREPARES_MAX:
                del self._encoded[next(iter(self._encoded))]
        return found


def decode_packet(
    packet: bytes, cluster_id: bytes, from_replica: int
) -> Iterator[PeerMessage | Undecodable]:
    """Yield the content of a packet from a replica of this cluster, in order. Never raises."""
    try:
        parts = pb.ExchangeRequest.FromString(packet).messages
    except DecodeError as error:
        yield Undecodable(DecodeRule.MALFORMED_PACKET, str(error))
        return
    for part in parts:
        try:
            yield _decode(part, cluster_id, from_replica)
        except _UndecodableError as error:
            yield error.what


class _UndecodableError(Exception):
    def __init__(self, rule: DecodeRule, detail: str) -> None:
        self.what = Undecodable(rule, detail)


def _encode(message: PeerMessage) -> OutgoingMessage:
    kind = KINDS_BY_TYPE[type(message)]
    request = pb.ExchangeRequest()
    part = getattr(request.messages.add(), kind.name)
    for field in kind.fields:
        field.write(part, field.name, getattr(message, field.name))
    return OutgoingMessage(kind.lane, type(message), request.SerializeToString())


def _decode(part: pb.ReplicaMessage, cluster_id: bytes, from_replica: int) -> PeerMessage:
    name = part.WhichOneof("kind")
    if name is None:
        raise _UndecodableError(DecodeRule.UNKNOWN_KIND, "a message of no kind that is known here")
    kind = KINDS_BY_NAME[name]
    body = getattr(part, name)
    values = [field.read(body, field.name, cluster_id) for field in kind.fields]
    return cast(PeerMessage, kind.message(cluster_id, from_replica, *values))


# --- Fields: how each sort is written, and how it is read and judged ---

_Write: TypeAlias = Callable[[Any, str, Any], None]
_Read: TypeAlias = Callable[[Any, str, bytes], Any]


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    write: _Write
    read: _Read


def _write_plain(part: Any, name: str, value: Any) -> None:
    setattr(part, name, value)


def _read_plain(part: Any, name: str, _: bytes) -> Any:
    return getattr(part, name)


def _plain(name: str) -> _Field:
    return _Field(name, _write_plain, _read_plain)


def _fixed(name: str, length: int) -> _Field:
    """Return a field of `length` bytes."""
    return _of_length(name, (length,))


def _fixed_or_empty(name: str, length: int) -> _Field:
    """Return a field of `length` bytes, or of none from a build that does not know it."""
    return _of_length(name, (length, 0))


def _of_length(name: str, lengths: tuple[int, ...]) -> _Field:
    def write(part: Any, _: str, value: bytes) -> None:
        if len(value) not in lengths:
            raise ValueError(f"{name} has {len(value)} bytes, not {lengths[0]}")
        setattr(part, name, value)

    def read(part: Any, _: str, __: bytes) -> bytes:
        value: bytes = getattr(part, name)
        if len(value) not in lengths:
            detail = f"{name} has {len(value)} bytes, not {lengths[0]}"
            raise _UndecodableError(DecodeRule.WRONG_LENGTH, detail)
        return value

    return _Field(name, write, read)


def _id(name: str) -> _Field:
    return _fixed(name, ID_BYTES)


def _write_prepare(part: Any, name: str, value: core.Prepare) -> None:
    # The core knows only the shape; the prepares that it is given are of the format.
    setattr(part, name, encode_prepare(cast(SealedPrepare, value)))


def _read_prepare(part: Any, name: str, cluster_id: bytes) -> SealedPrepare:
    try:
        prepare = decode_prepare(getattr(part, name))
    except FormatError as error:
        raise _UndecodableError(DecodeRule.CORRUPT_PREPARE, str(error)) from error
    _check_cluster(prepare.header, cluster_id)
    return prepare


_PREPARE: Final = _Field("prepare", _write_prepare, _read_prepare)


def _write_headers(part: Any, name: str, value: Iterable[core.PrepareHeader]) -> None:
    getattr(part, name).extend(encode_header(cast(SealedHeader, header)) for header in value)


def _read_headers(part: Any, name: str, cluster_id: bytes) -> tuple[SealedHeader, ...]:
    return tuple(_read_header(encoded, cluster_id) for encoded in getattr(part, name))


def _read_header(encoded: bytes, cluster_id: bytes) -> SealedHeader:
    if len(encoded) != HEADER_BYTES:
        detail = f"a header has {len(encoded)} bytes, not {HEADER_BYTES}"
        raise _UndecodableError(DecodeRule.WRONG_LENGTH, detail)
    try:
        header = decode_header(encoded)
    except FormatError as error:
        raise _UndecodableError(DecodeRule.CORRUPT_HEADER, str(error)) from error
    _check_cluster(header, cluster_id)
    return header


def _check_cluster(header: SealedHeader, cluster_id: bytes) -> None:
    if header.cluster_id != cluster_id:
        detail = f"op {header.op} is of cluster {header.cluster_id.hex()}, not {cluster_id.hex()}"
        raise _UndecodableError(DecodeRule.OTHER_CLUSTER, detail)


_HEADERS: Final = _Field("headers", _write_headers, _read_headers)


def _write_numbers(part: Any, name: str, value: Iterable[int]) -> None:
    getattr(part, name).extend(value)


def _read_numbers(part: Any, name: str, _: bytes) -> tuple[int, ...]:
    return tuple(getattr(part, name))


def _write_tasks(part: Any, name: str, value: Iterable[Any]) -> None:
    getattr(part, name).extend(task_message(task) for task in value)


def _read_tasks(part: Any, name: str, _: bytes) -> tuple[Any, ...]:
    try:
        return tasks_of(getattr(part, name))
    except ValueError as error:
        raise _UndecodableError(DecodeRule.UNKNOWN_STAGE, str(error)) from error


def _write_disk(part: Any, name: str, value: DiskMark) -> None:
    getattr(part, name).CopyFrom(encode_disk(value))


def _read_disk(part: Any, name: str, _: bytes) -> DiskMark:
    mark = decode_disk(getattr(part, name))
    if len(mark.disk_id) not in (0, DISK_ID_BYTES):
        detail = f"disk_id has {len(mark.disk_id)} bytes, not {DISK_ID_BYTES}"
        raise _UndecodableError(DecodeRule.WRONG_LENGTH, detail)
    return mark


def _text(name: str, characters_max: int) -> _Field:
    """Return a field of at most `characters_max` characters."""

    def read(part: Any, _: str, __: bytes) -> str:
        text: str = getattr(part, name)
        if len(text) > characters_max:
            detail = f"{name} has {len(text)} characters, at most {characters_max} are allowed"
            raise _UndecodableError(DecodeRule.WRONG_LENGTH, detail)
        return text

    return _Field(name, _write_plain, read)


# --- Kinds ---


@dataclass(frozen=True, slots=True)
class _Kind:
    message: type
    name: str
    fields: tuple[_Field, ...]
    lane: OutboxLane = OutboxLane.URGENT

    def __post_init__(self) -> None:
        # Messages are built by position, which is much faster than by name.
        names = [field.name for field in dataclasses.fields(self.message)]
        written = ["cluster_id", "from_replica", *(field.name for field in self.fields)]
        assert names == written, f"{self.name}: {written} are not the fields {names}"


_FAULTY: Final = _Field("faulty", _write_numbers, _read_numbers)
_TASKS: Final = _Field("tasks", _write_tasks, _read_tasks)
_DISK: Final = _Field("disk", _write_disk, _read_disk)
_VIEW: Final = _plain("view")
_OP: Final = _plain("op")
_COMMIT: Final = _plain("commit")
_TOKEN: Final = _plain("token")
_NONCE: Final = _id("nonce")
_CHECKSUM: Final = _id("checksum")

TABLE: Final = (
    _Kind(core.PrepareMessage, "prepare", (_VIEW, _PREPARE), OutboxLane.BODY),
    _Kind(core.PrepareOkMessage, "prepare_ok", (_VIEW, _OP, _CHECKSUM, _plain("commit_min"))),
    _Kind(core.CommitMessage, "commit", (_VIEW, _COMMIT, _CHECKSUM, _plain("read_round"))),
    _Kind(core.CommitOkMessage, "commit_ok", (_VIEW, _plain("read_round"))),
    _Kind(core.ReadIndexRequestMessage, "read_index_request", (_VIEW, _NONCE, _TOKEN)),
    _Kind(core.ReadIndexReplyMessage, "read_index_reply", (_VIEW, _NONCE, _TOKEN, _OP)),
    _Kind(core.BlankQueryMessage, "blank_query", (_NONCE,)),
    _Kind(core.BlankAnswerMessage, "blank_answer", (_id("echo"), _NONCE)),
    _Kind(core.StartViewChangeMessage, "start_view_change", (_plain("target_view"),)),
    _Kind(
        core.DoViewChangeMessage,
        "do_view_change",
        (
            *(_VIEW, _plain("log_view"), _COMMIT, _plain("head_op")),
            *(_HEADERS, _FAULTY, _plain("head_uncertain")),
        ),
    ),
    _Kind(
        core.StartViewMessage,
        "start_view",
        (_VIEW, _NONCE, _COMMIT, _plain("head_op"), _HEADERS),
    ),
    _Kind(core.RequestStartViewMessage, "request_start_view", (_VIEW, _NONCE)),
    _Kind(core.RequestPrepareMessage, "request_prepare", (_OP, _CHECKSUM)),
    _Kind(core.RepairMessage, "repair", (_PREPARE,), OutboxLane.BODY),
    _Kind(
        core.RequestCommittedMessage,
        "request_committed",
        (_plain("first_op"), _plain("last_op")),
    ),
    _Kind(core.CommittedMessage, "committed", (_PREPARE, _COMMIT), OutboxLane.BODY),
    _Kind(core.EpochEndedMessage, "epoch_ended", (_plain("epoch"), _OP, _CHECKSUM)),
    _Kind(
        core.CommittedGoneMessage,
        "committed_gone",
        (_plain("first_held_op"), _plain("generation"), _plain("cut_op")),
    ),
    _Kind(core.RequestAdmissionMessage, "request_admission", (_NONCE, _COMMIT)),
    _Kind(core.AdmissionMessage, "admission", (_VIEW, _NONCE, _plain("voting_view"))),
    _Kind(core.AdmissionDurableMessage, "admission_durable", (_VIEW, _plain("voting_view"))),
    _Kind(
        shell.SnapshotDurableMessage,
        "snapshot_durable",
        (_plain("generation"), _fixed("root", ROOT_BYTES), _TASKS),
    ),
    _Kind(
        shell.ReplicaReportMessage,
        "replica_report",
        (
            *(_plain("status"), _VIEW, _OP, _COMMIT, _plain("applied"), _plain("generation")),
            _text("client_address", ADDRESS_CHARACTERS_MAX),
            _text("unfit", REASON_CHARACTERS_MAX),
            _plain("feature_level_max"),
            _plain("clock_us"),
            _fixed_or_empty("applied_digest", APPLIED_DIGEST_BYTES),
            _plain("common_op"),
            _fixed_or_empty("common_digest", APPLIED_DIGEST_BYTES),
            _DISK,
            _fixed_or_empty("disk_id", DISK_ID_BYTES),
            _plain("lacks_vote"),
        ),
    ),
)
KINDS_BY_TYPE: Final = MappingProxyType({kind.message: kind for kind in TABLE})
KINDS_BY_NAME: Final = MappingProxyType({kind.name: kind for kind in TABLE})
