"""The messages that wait for one peer: lanes, bounds and packets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.peers.outbox import PACKET_MESSAGES_MAX, Outbox, OutboxLane, OutgoingMessage


class Vote:
    """A kind of urgent message."""


class Beat:
    """Another kind of urgent message."""


class Body:
    """A kind of body."""


def vote(data: bytes) -> OutgoingMessage:
    """Return an urgent message."""
    return OutgoingMessage(OutboxLane.URGENT, Vote, data)


def body(data: bytes) -> OutgoingMessage:
    """Return a body."""
    return OutgoingMessage(OutboxLane.BODY, Body, data)


def everything(outbox: Outbox) -> list[bytes]:
    """Take every packet."""
    packets = []
    while outbox:
        packets.append(outbox.packet()[0])
    return packets


def test_what_waits_goes_out_in_one_packet_in_order() -> None:
    """Lanes do not reorder what fits together."""
    outbox = Outbox()
    for message in (vote(b"1"), body(b"2"), vote(b"3"), body(b"4")):
        outbox.put(message)
    assert outbox.packet() == (b"1234", 4)
    assert (len(outbox), outbox.bytes, outbox.dropped) == (0, 0, 0)
    assert outbox.packet() == (b"", 0)


def test_urgent_messages_overtake_bodies_that_do_not_fit() -> None:
    """A vote behind many bodies is in the next packet, with at least one of them."""
    outbox = Outbox(packet_bytes_max=10)
    for number in range(5):
        outbox.put(body(bytes([number]) * 8))
    outbox.put(vote(b"vote"))
    assert outbox.packet() == (b"\0" * 8 + b"vote", 2)


def test_bodies_do_not_starve_behind_urgent_messages() -> None:
    """Each packet carries a body, however many votes wait."""
    outbox = Outbox()
    outbox.put(body(b"B"))
    for _ in range(2 * PACKET_MESSAGES_MAX):
        outbox.put(vote(b"v"))
    packet, count = outbox.packet()
    assert packet.startswith(b"B")
    assert count == PACKET_MESSAGES_MAX + 1


def test_oldest_bodies_are_given_up_first_then_oldest_votes() -> None:
    """A full outbox drops bodies as long as there are any, and counts them."""
    outbox = Outbox(messages_max=3)
    for message in (vote(b"v"), body(b"1"), body(b"2"), body(b"3"), vote(b"w"), vote(b"x")):
        outbox.put(message)
    assert outbox.dropped == 3
    assert everything(outbox) == [b"vwx"]
    for name in (b"a", b"b", b"c", b"d"):
        outbox.put(vote(name))
    assert outbox.dropped == 4
    assert everything(outbox) == [b"bcd"]


def test_bytes_are_bounded() -> None:
    """A few large bodies fill the outbox as many small ones do."""
    outbox = Outbox(bytes_max=100)
    for number in range(5):
        outbox.put(body(bytes([number]) * 40))
    outbox.put(vote(b"v"))
    assert outbox.bytes == 81
    assert outbox.dropped == 3


def test_without_a_connection_the_newest_of_each_kind_waits() -> None:
    """A peer that comes back hears the current state, not the earlier one."""
    outbox = Outbox()
    for message in (
        vote(b"1"),
        OutgoingMessage(OutboxLane.URGENT, Beat, b"2"),
        body(b"3"),
        vote(b"4"),
    ):
        outbox.put_newest(message)
    outbox.put_newest(body(b"5"))
    assert outbox.dropped == 2
    assert outbox.packet() == (b"245", 3)
    assert outbox.bytes == 0


def test_a_lost_connection_clears_and_counts() -> None:
    """A lost connection drops the waiting messages, and counts them."""
    outbox = Outbox()
    outbox.put(vote(b"1"))
    outbox.put(body(b"2"))
    outbox.clear()
    assert (len(outbox), outbox.bytes, outbox.dropped) == (0, 0, 2)


MESSAGES = st.lists(st.tuples(st.booleans(), st.integers(1, 60)), max_size=60)


@given(MESSAGES, st.integers(1, 20), st.integers(60, 200))
def test_nothing_is_lost_without_being_counted(
    sizes: list[tuple[bool, int]], messages_max: int, bytes_max: int
) -> None:
    """Bounds hold after each message; every message is sent once or counted as dropped, and each
    lane keeps its order."""
    outbox = Outbox(messages_max, bytes_max, packet_bytes_max=64)
    for number, (is_body, size) in enumerate(sizes):
        data = bytes([number]) * size
        outbox.put(body(data) if is_body else vote(data))
        assert len(outbox) <= messages_max
        assert outbox.bytes <= bytes_max
    sent = [byte for packet in everything(outbox) for byte in dict.fromkeys(packet)]
    assert len(sent) + outbox.dropped == len(sizes)
    for lane in (True, False):
        numbers = [number for number in sent if sizes[number][0] is lane]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("make", [vote, body])
def test_a_message_larger_than_a_packet_goes_alone(make: type[OutgoingMessage]) -> None:
    """A large message does not wait for ever."""
    outbox = Outbox(packet_bytes_max=10)
    outbox.put(make(b"x" * 50))  # type: ignore[call-arg, arg-type]
    outbox.put(make(b"y" * 50))  # type: ignore[call-arg, arg-type]
    assert everything(outbox) == [b"x" * 50, b"y" * 50]
