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
    """The rows name exactly the kinds of the protocol's oneof, once each."""
    names = {kind.message: kind.name for kind in codec.TABLE}
    assert Counter(names[message] for message, _ in ROUTES) == Counter(KINDS)
    assert sorted(kind.name for kind in codec.TABLE) == KINDS


def test_a_receiver_gets_the_messages_of_its_rows() -> None:
    """The receiver in its row handles each message type."""
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


@pytest.mark.parametrize("receiver", [ROUTES[0][1], Receiver.REPORTS], ids=["same", "another"])
def test_a_doubled_row_is_found_at_once(receiver: Receiver) -> None:
    """A kind with two rows is refused by its name, whatever the second row says."""
    message = ROUTES[0][0]
    receivers = dict.fromkeys(Receiver, print)
    with pytest.raises(ValueError, match=f"{message.__name__} has two rows"):
        handlers_of(receivers, (*ROUTES, (message, receiver)))
