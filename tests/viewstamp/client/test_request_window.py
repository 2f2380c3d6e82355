"""The window of request numbers, as a pure machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from viewstamp.client.packing import Parcel
from viewstamp.client.window import OutstandingRequest, RequestWindow


def parcel() -> Parcel:
    """Return a parcel of one command."""
    return Parcel([], [], [], 1)


def admit(window: RequestWindow, count: int) -> list[OutstandingRequest]:
    """Number as many parcels."""
    return [window.admit(parcel()) for _ in range(count)]


def test_acked_is_the_number_up_to_which_all_are_settled() -> None:
    """An answer that overtakes another one is not acknowledged before that one arrived."""
    window = RequestWindow()
    admit(window, 4)
    acked = []
    for number in (2, 1, 4, 3):
        window.settle(number)
        acked.append(window.acked)
    assert acked == [0, 2, 2, 4]
    assert window.is_empty


def test_room_ends_at_the_window() -> None:
    """The ninth request waits for the first answer."""
    window = RequestWindow()
    admit(window, 8)
    assert not window.has_room
    window.settle(2)
    assert not window.has_room
    window.settle(1)
    assert window.has_room


def test_nothing_new_is_sent_past_a_held_request() -> None:
    """While a request waits to be sent again, no new number is given."""
    window = RequestWindow()
    admit(window, 2)
    window.hold(1)
    assert not window.has_room
    assert [request.number for request in window.resend()] == [1]
    assert window.has_room


def test_hole_is_closed_once_nothing_behind_it_is_on_the_wire() -> None:
    """Requests behind a refused one move up, but only after each of them was refused too."""
    window = RequestWindow()
    requests = admit(window, 4)
    window.drop(2)
    assert not window.has_room
    assert window.resend() == []
    window.hold(3)
    window.hold(4)
    assert [request.number for request in window.resend()] == [2, 3]
    assert window.outstanding == [requests[0], requests[2], requests[3]]
    assert window.acked == 0
    assert window.admit(parcel()).number == 4


def test_numbers_of_an_earlier_stream_are_given_anew() -> None:
    """When the next stream refuses a request for good, its number goes to the following request."""
    window = RequestWindow()
    requests = admit(window, 4)
    window.hold_all()
    assert window.resend() == requests
    window.drop(2)
    for number in (3, 4):
        window.hold(number)
    assert [request.number for request in window.resend()] == [2, 3]
    window.hold_all()
    window.resend()
    window.drop(3)
    assert window.admit(parcel()).number == 3


def test_second_answer_to_a_number_is_ignored() -> None:
    """A request that was sent twice is settled by the first answer."""
    window = RequestWindow()
    admit(window, 1)
    assert window.settle(1) is not None
    assert window.settle(1) is None


class Server:
    """A model of the cluster: counts the accepted requests, refuses the rest."""

    def __init__(self) -> None:
        self.last = 0
        self.accepted: list[OutstandingRequest] = []

    def receive(self, request: OutstandingRequest, *, refuse: bool) -> str:
        """Return `accepted`, `gap`, or `refused`."""
        if request.number <= self.last:
            return "accepted"
        if request.number > self.last + 1:
            return "gap"
        if refuse:
            return "refused"
        self.last += 1
        self.accepted.append(request)
        return "accepted"


@given(st.data())
def test_each_request_is_accepted_once_or_refused(data: st.DataObject) -> None:
    """Under any refusals numbers never skip, and no request is lost or doubled."""
    window, server = RequestWindow(), Server()
    wire: list[OutstandingRequest] = []
    admitted: list[OutstandingRequest] = []
    refused: list[OutstandingRequest] = []
    for _ in range(data.draw(st.integers(1, 40))):
        if window.has_room and data.draw(st.booleans()):
            admitted.append(window.admit(parcel()))
            wire.append(admitted[-1])
        if data.draw(st.booleans()) and wire:
            request = wire.pop(0)
            verdict = data.draw(st.sampled_from(["accept", "later", "never"]))
            answer = server.receive(request, refuse=verdict != "accept")
            if answer == "accepted":
                window.settle(request.number)
            elif answer == "refused" and verdict == "never":
                refused.append(request)
                window.drop(request.number)
            else:
                window.hold(request.number)
        if data.draw(st.booleans()):
            wire += window.resend()
    wire += window.resend()
    while wire:
        request = wire.pop(0)
        if server.receive(request, refuse=False) == "accepted":
            window.settle(request.number)
        else:
            window.hold(request.number)
        if not wire:
            wire += window.resend()
    assert window.is_empty
    assert len(server.accepted) == server.last == len(set(map(id, server.accepted)))
    assert len(server.accepted) + len(refused) == len(admitted)
    assert window.acked == server.last
