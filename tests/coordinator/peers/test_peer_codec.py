"""Messages between replicas as bytes: none changes on the way, and no damaged one is accepted."""

from __future__ import annotations

import typing
from collections import Counter
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coordinator.mux.catalog_types import TaskSnapshot
from coordinator.mux.stage import Stage
from coordinator.peers import codec
from coordinator.peers import messages as shell
from coordinator.peers.codec import DecodeRule, Encoder, Undecodable, decode_packet
from coordinator.peers.hello import DiskMark
from coordinator.peers.messages import PeerMessage
from coordinator.peers.outbox import OutboxLane
from coordinator.vsr import messages as core
from tests.coordinator.peers.peer_trial import CLUSTER, OTHER_CLUSTER, heartbeat, sealed
from viewstamp.api.replication.v1 import replication_service_pb2 as pb
from viewstamp.format.prepare import encode_header, encode_prepare
from viewstamp.limits import PREPARE_BODY_BYTES_MAX

SENDER = 1
KINDS: tuple[type, ...] = typing.get_args(PeerMessage)

numbers = st.integers(0, 2**64 - 1)
ids = st.binary(min_size=16, max_size=16)
roots = st.binary(min_size=32, max_size=32)
prepares = st.builds(sealed, op=st.integers(1, 2**40), body=st.binary(max_size=200))
headers = st.builds(lambda prepare: prepare.header, prepares)
disks = st.builds(DiskMark, st.just(b"") | ids, numbers, numbers, numbers, numbers, numbers, ids)
tasks = st.builds(TaskSnapshot, st.sampled_from(Stage), numbers, roots, numbers, numbers)
# By the annotation of a field, or by its name where the annotation does not tell the length.
BY_NAME = {
    "cluster_id": st.just(CLUSTER),
    "from_replica": st.just(SENDER),
    "root": roots,
    "unfit": st.text(max_size=200),
    "status": st.integers(0, 2**32 - 1),
    "feature_level_max": st.integers(0, 2**32 - 1),
    "client_address": st.text(max_size=300),
    "applied_digest": ids | st.just(b""),
    "common_digest": ids | st.just(b""),
}
BY_ANNOTATION = {
    "int": numbers,
    "bool": st.booleans(),
    "bytes": ids,
    "DiskMark": disks,
    "Prepare": prepares,
    "tuple[PrepareHeader, ...]": st.lists(headers, max_size=9).map(tuple),
    "tuple[int, ...]": st.lists(numbers, max_size=9).map(tuple),
    "tuple[TaskSnapshot, ...]": st.lists(tasks, max_size=5).map(tuple),
}


def any_of(kind: type) -> st.SearchStrategy[PeerMessage]:
    """Return messages of a kind with all possible values of its fields."""
    values = {
        field.name: BY_NAME[field.name] if field.name in BY_NAME else BY_ANNOTATION[str(field.type)]
        for field in fields(kind)
    }
    return st.builds(kind, **values)


any_message = st.one_of([any_of(kind) for kind in KINDS])


def encoded(message: PeerMessage) -> bytes:
    """Return a message as the sender's packet."""
    return Encoder(CLUSTER, SENDER).encode(message).data


def decoded(packet: bytes) -> list[PeerMessage | Undecodable]:
    """Return all that a packet of the sender holds."""
    return list(decode_packet(packet, CLUSTER, SENDER))


def rules(packet: bytes) -> list[DecodeRule]:
    """Return the rules that drop a packet's messages."""
    return [found.rule for found in decoded(packet) if isinstance(found, Undecodable)]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(data=st.data())
def test_every_kind_arrives_as_it_was_sent(kind: type, data: st.DataObject) -> None:
    """Every message, with any values, is the same on the other side."""
    message = data.draw(any_of(kind))
    assert decoded(encoded(message)) == [message]


def test_zeros_arrive() -> None:
    """A message whose fields are all 0 still leaves a trace on the wire."""
    message = core.CommitOkMessage(CLUSTER, SENDER, 0, 0)
    assert decoded(encoded(message)) == [message]


@given(st.lists(any_message, max_size=6))
def test_joined_encodings_are_a_packet(sent: list[PeerMessage]) -> None:
    """Messages are packed by joining their bytes, and arrive in order."""
    assert decoded(b"".join(map(encoded, sent))) == sent


@given(st.binary(max_size=300))
def test_any_bytes_are_judged(packet: bytes) -> None:
    """Any input gives messages or named refusals."""
    for found in decoded(packet):
        assert isinstance(found, (Undecodable, *KINDS))


@settings(max_examples=200)
@given(any_message, st.data())
def test_damaged_messages_are_judged(message: PeerMessage, data: st.DataObject) -> None:
    """A message with a changed, cut or added byte gives messages or named refusals, and a
    damaged entry or header never passes for an intact one."""
    packet = bytearray(encoded(message))
    position = data.draw(st.integers(0, len(packet) - 1))
    change = data.draw(st.integers(0, 2))
    if change == 0:
        packet[position] ^= data.draw(st.integers(1, 255))
    elif change == 1:
        del packet[position:]
    else:
        packet.insert(position, data.draw(st.integers(0, 255)))
    known = entries_of(message)
    for found in decoded(bytes(packet)):
        assert isinstance(found, (Undecodable, *KINDS))
        if not isinstance(found, Undecodable):
            assert not entries_of(found) - known


def entries_of(message: Any) -> Counter[bytes]:
    """Return the entries and headers of a message, encoded."""
    found = [encode_header(header) for header in getattr(message, "headers", ())]
    if hasattr(message, "prepare"):
        found.append(encode_prepare(message.prepare))
    return Counter(found)


def test_prepares_are_byte_identical() -> None:
    """The wire carries the very bytes that journals hold."""
    prepare = sealed(body=b"\0\xff" * 1000)
    message = core.PrepareMessage(CLUSTER, SENDER, 3, prepare)
    part = pb.ExchangeRequest.FromString(encoded(message)).messages[0]
    assert part.prepare.prepare == encode_prepare(prepare)


def test_a_prepare_is_encoded_once_for_all_backups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two backups, and a repeat to one, get the same bytes object; another view gets others."""
    calls = []

    def counting(prepare: Any) -> bytes:
        calls.append(prepare)
        return encode_prepare(prepare)

    monkeypatch.setattr(codec, "encode_prepare", counting)
    encoder = Encoder(CLUSTER, SENDER)
    prepare = sealed()
    first, second = (
        encoder.encode(core.PrepareMessage(CLUSTER, SENDER, 3, prepare)) for _ in range(2)
    )
    assert first.data is second.data
    assert len(calls) == 1
    encoder.encode(core.PrepareMessage(CLUSTER, SENDER, 4, prepare))
    assert len(calls) == 2


def test_encoded_prepares_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many encodings are kept as a pipeline may need again, and no more."""
    monkeypatch.setattr(codec, "ENCODED_PREPARES_MAX", 2)
    encoder = Encoder(CLUSTER, SENDER)
    messages = [core.PrepareMessage(CLUSTER, SENDER, 3, sealed(op)) for op in (2, 3, 4)]
    first = [encoder.encode(message) for message in messages]
    assert encoder.encode(messages[2]) is first[2]
    assert encoder.encode(messages[0]) is not first[0]


def changed(message: PeerMessage, change: Any) -> bytes:
    """Return the encoding of a message after a change of its wire form."""
    request = pb.ExchangeRequest.FromString(encoded(message))
    change(request.messages[0])
    return request.SerializeToString()


def flip(data: bytes, position: int) -> bytes:
    """Return the bytes with one bit changed."""
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


PREPARE = core.PrepareMessage(CLUSTER, SENDER, 3, sealed())
VOTE = core.DoViewChangeMessage(CLUSTER, SENDER, 4, 3, 1, 2, (sealed().header,), (), False)
DURABLE = shell.SnapshotDurableMessage(
    CLUSTER, SENDER, 1, b"r" * 32, (TaskSnapshot(Stage.USERS, 1, b"d" * 32, 1, 1),)
)


def _body(part: Any) -> None:
    part.prepare.prepare = flip(part.prepare.prepare, 130)


def _header(part: Any) -> None:
    part.prepare.prepare = flip(part.prepare.prepare, 100)


def _cut(part: Any) -> None:
    part.prepare.prepare = part.prepare.prepare[:-1]


def _foreign(part: Any) -> None:
    part.prepare.prepare = encode_prepare(sealed(cluster_id=OTHER_CLUSTER))


def _vote_header(part: Any) -> None:
    part.do_view_change.headers[0] = flip(part.do_view_change.headers[0], 100)


def _long_header(part: Any) -> None:
    part.do_view_change.headers[0] += b"\0"


def _foreign_header(part: Any) -> None:
    foreign = sealed(cluster_id=OTHER_CLUSTER).header
    part.do_view_change.headers[0] = encode_header(foreign)


def _short_checksum(part: Any) -> None:
    part.commit.checksum = b"short"


def _no_kind(part: Any) -> None:
    part.Clear()


def _stage(part: Any) -> None:
    part.snapshot_durable.tasks[0].stage = 99


def _short_digest(part: Any) -> None:
    part.replica_report.common_digest = b"short"


def _long_address(part: Any) -> None:
    part.replica_report.client_address = "x" * 301


@pytest.mark.parametrize(
    ("message", "change", "rule"),
    [
        (PREPARE, _body, DecodeRule.CORRUPT_PREPARE),
        (PREPARE, _header, DecodeRule.CORRUPT_PREPARE),
        (PREPARE, _cut, DecodeRule.CORRUPT_PREPARE),
        (PREPARE, _foreign, DecodeRule.OTHER_CLUSTER),
        (VOTE, _vote_header, DecodeRule.CORRUPT_HEADER),
        (VOTE, _long_header, DecodeRule.WRONG_LENGTH),
        (VOTE, _foreign_header, DecodeRule.OTHER_CLUSTER),
        (heartbeat(SENDER, 1), _short_checksum, DecodeRule.WRONG_LENGTH),
        (heartbeat(SENDER, 1), _no_kind, DecodeRule.UNKNOWN_KIND),
        (DURABLE, _stage, DecodeRule.UNKNOWN_STAGE),
        (
            shell.ReplicaReportMessage(CLUSTER, SENDER, 1, 0, 0, 0, 0, 0, ""),
            _long_address,
            DecodeRule.WRONG_LENGTH,
        ),
        (
            shell.ReplicaReportMessage(CLUSTER, SENDER, 1, 0, 0, 0, 0, 0, ""),
            _short_digest,
            DecodeRule.WRONG_LENGTH,
        ),
    ],
)
def test_what_is_wrong_has_a_name(message: PeerMessage, change: Any, rule: DecodeRule) -> None:
    """Each kind of damage is dropped by its own rule, and its neighbours in the packet are kept."""
    neighbour = heartbeat(SENDER, 7)
    packet = changed(message, change) + encoded(neighbour)
    assert rules(packet) == [rule]
    assert decoded(packet)[-1] == neighbour


@example(b"\xff")
@given(st.binary(max_size=10))
def test_a_packet_that_is_none(garbage: bytes) -> None:
    """A packet that cannot be parsed is one refusal."""
    assert rules(encoded(heartbeat(SENDER, 1)) + b"\x12\xff" + garbage)[:1] == [
        DecodeRule.MALFORMED_PACKET
    ]


def test_cluster_and_sender_are_those_of_the_stream() -> None:
    """A message does not name its sender, so it cannot claim to be another's."""
    (found,) = decode_packet(encoded(heartbeat(SENDER, 1)), OTHER_CLUSTER, 2)
    assert not isinstance(found, Undecodable)
    assert (found.cluster_id, found.from_replica) == (OTHER_CLUSTER, 2)


@pytest.mark.parametrize(
    "message",
    [
        heartbeat(2, 1),
        core.CommitMessage(OTHER_CLUSTER, SENDER, 3, 1, b"k" * 16, 0),
        core.CommitMessage(CLUSTER, SENDER, 3, 1, b"short", 0),
    ],
)
def test_a_defect_of_the_sender_is_an_error_there(message: PeerMessage) -> None:
    """The sender never sends a message that its receiver would have to drop."""
    with pytest.raises(ValueError):
        Encoder(CLUSTER, SENDER).encode(message)


def test_only_entries_of_the_log_are_bodies() -> None:
    """Votes and heartbeats wait in the lane that is dropped last."""
    bodies = {core.PrepareMessage, core.RepairMessage, core.CommittedMessage}
    assert {kind for kind in KINDS if codec.KINDS_BY_TYPE[kind].lane is OutboxLane.BODY} == bodies


def test_every_kind_of_the_wire_is_known() -> None:
    """The table and the proto name the same kinds."""
    wire = {field.name for field in pb.ReplicaMessage.DESCRIPTOR.oneofs[0].fields}
    assert set(codec.KINDS_BY_NAME) == wire
    assert set(codec.KINDS_BY_TYPE) == set(KINDS)


def test_the_largest_prepare_arrives() -> None:
    """A body of the largest size passes, verified."""
    prepare = sealed(body=b"\x5a" * PREPARE_BODY_BYTES_MAX)
    message = core.PrepareMessage(CLUSTER, SENDER, 3, prepare)
    assert decoded(encoded(message)) == [message]
