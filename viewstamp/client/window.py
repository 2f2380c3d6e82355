"""Request numbers of one session: the outstanding ones, and those to resend. No I/O, no clock.

A number belongs to one parcel until the cluster has answered it; only then may it be acknowledged.
A request with a final refusal never got into the log, and neither did any request after it. The
later ones wait until none of them is on the wire, and then get new numbers.

This holds for requests of an earlier stream, too: once the present stream is open, the cluster
takes no new requests from earlier ones, so a delayed copy there claims no number. The session stays
the same, because groups know their members by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from viewstamp import limits
from viewstamp.client.packing import Parcel


@dataclass(slots=True, eq=False)
class OutstandingRequest:
    """A numbered parcel whose answer is outstanding."""

    number: int
    parcel: Parcel
    sends: int = 0
    on_wire: bool = False
    # Whether the token was already renewed for it; then another refusal is final.
    renewed: bool = False


class RequestWindow:
    """The outstanding requests of one session."""

    def __init__(self, requests_max: int = limits.SESSION_WINDOW_REQUESTS) -> None:
        self._requests_max = requests_max
        self._next_number = 1
        self._hole: int | None = None
        self._outstanding: dict[int, OutstandingRequest] = {}  # ascending
        self._off_wire = 0
        self.command_count = 0  # outstanding

    @property
    def outstanding(self) -> list[OutstandingRequest]:
        """All without an answer, ascending."""
        return list(self._outstanding.values())

    @property
    def is_empty(self) -> bool:
        """Whether every request has its answer."""
        return not self._outstanding

    @property
    def acked(self) -> int:
        """The number up to which every answer has arrived."""
        lowest = next(iter(self._outstanding), self._next_number)
        return (lowest if self._hole is None else min(lowest, self._hole)) - 1

    @property
    def has_room(self) -> bool:
        """Whether a new request may be sent now."""
        if self._hole is not None or self._off_wire:
            return False
        return self._next_number <= self.acked + self._requests_max

    def get(self, number: int) -> OutstandingRequest | None:
        """Return the outstanding request of a number."""
        return self._outstanding.get(number)

    def admit(self, parcel: Parcel) -> OutstandingRequest:
        """Number a parcel that is about to be sent."""
        assert self.has_room, "a request was numbered without room for it"
        request = OutstandingRequest(self._next_number, parcel, sends=1, on_wire=True)
        self._outstanding[request.number] = request
        self._next_number += 1
        self.command_count += parcel.count
        return request

    def settle(self, number: int) -> OutstandingRequest | None:
        """Remove and return an answered request; None for the reply to a second copy."""
        request = self._take(number)
        if request is not None and self._hole is not None and number > self._hole:
            # A request after the hole was accepted, so the cluster has counted the refused number.
            self._hole = None
        return request

    def hold(self, number: int) -> None:
        """Keep a request that was refused for now: it must be sent again."""
        request = self._outstanding[number]
        self._off_wire += request.on_wire
        request.on_wire = False

    def hold_all(self) -> None:
        """Keep all requests: the stream that carried them has ended."""
        for number in self._outstanding:
            self.hold(number)

    def drop(self, number: int) -> None:
        """Remove a request with a final refusal. Its number was not used."""
        self._take(number)
        self._hole = number if self._hole is None else min(self._hole, number)
        self._close_hole()

    def resend(self) -> list[OutstandingRequest]:
        """Return all that must be sent (again) now, ascending; they count as sent.

        Call this only once a new stream is open: before, the cluster may still read an earlier one.
        """
        self._close_hole()
        if self._hole is not None:
            return []
        again = [request for request in self._outstanding.values() if not request.on_wire]
        for request in again:
            request.sends += 1
            request.on_wire = True
        self._off_wire = 0
        return again

    def _take(self, number: int) -> OutstandingRequest | None:
        request = self._outstanding.pop(number, None)
        if request is not None:
            self.command_count -= request.parcel.count
            self._off_wire -= not request.on_wire
        return request

    def _close_hole(self) -> None:
        hole = self._hole
        if hole is None:
            return
        requests = self.outstanding
        if any(request.on_wire for request in requests if request.number > hole):
            return
        self._next_number = hole
        for request in requests:
            if request.number > hole:
                del self._outstanding[request.number]
                request.number = self._next_number
                # It was refused under its old number, and never sent under the new one.
                request.sends = 0
                self._outstanding[request.number] = request
                self._next_number += 1
        self._hole = None
