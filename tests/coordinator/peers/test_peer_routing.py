"""Every message of another replica has one receiver."""

from __future__ import annotations

from collections import Counter

import pytest

from coordinator.peers import codec
from coordinator.peers.routing import ROUTES, Receiver, handlers_of
from viewstamp.api.replication.v1 import replication_service_pb2 as pb

ONEOF = pb.ReplicaMessage.DESCRIPTOR.oneofs_by_name["kind"]
KINDS = sorted(field.name for field in ONEOF.fields)


def test_every_kind_of_the_protocol_has_one_row() -> None:
    """The rows, by the names the protocol has for them, are the kinds of its oneof, once each."""
    names = {kind.message: kind.name for kind in codec.TABLE}
    assert Counter(names[message] for message, _ in ROUTES) == Counter(KINDS)
    assert sorted(kind.name for kind in codec.TABLE) == KINDS


def test_a_receiver_gets_the_messages_of_its_rows() -> None:
    """Each message type is handled by the receiver that its row names."""
    taken: dict[Receiver, list[object]] = {receiver: [] for receiver in Receiver}
    handlers = handlers_of({receiver: taken[receiver].append for receiver in Receiver})
    for message, receiver in ROUTES:
        handlers[message](message)
        assert taken[receiver][-1] is message
    assert sum(map(len, taken.values())) == len(KINDS)


def test_a_missing_receiver_is_found_at_once() -> None:
    """A replica without a receiver of snapshots cannot be put together."""
    with pytest.raises(KeyError, match="SNAPSHOTS"):
        handlers_of({Receiver.CORE: print, Receiver.REPORTS: print})
