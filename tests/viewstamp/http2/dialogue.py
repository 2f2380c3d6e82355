"""Two ends that talk: ours with each other, and ours with another implementation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from h2.config import H2Configuration
from h2.connection import H2Connection

from viewstamp.http2 import Connection, Event, FrameReceiver, Limits, Role, write_block

Kind = TypeVar("Kind", bound=Event)

REQUEST = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/service/method"),
    (b":authority", b"localhost"),
    (b"te", b"trailers"),
    (b"content-type", b"application/grpc"),
)
RESPONSE = ((b":status", b"200"), (b"content-type", b"application/grpc"))
TRAILERS = ((b"grpc-status", b"0"),)
REQUEST_BLOCK, RESPONSE_BLOCK, TRAILERS_BLOCK = map(write_block, (REQUEST, RESPONSE, TRAILERS))


class Http2End:
    """One end of ours, with what it was told."""

    def __init__(self, role: Role, limits: Limits | None = None) -> None:
        self.connection = Connection(role, limits or Limits())
        self.events: list[Event] = []
        self._receiver = FrameReceiver(self.connection)
        self.connection.begin()

    def hear(self, data: bytes, now_ms: int = 0) -> list[Event]:
        """Take bytes; return what is new."""
        new = self._receiver.receive(data, now_ms)
        self.events += new
        return new

    def told(self, kind: type[Kind]) -> list[Kind]:
        """Return all events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


def pair(client: Limits | None = None, server: Limits | None = None) -> tuple[Http2End, Http2End]:
    """Return a client and a server of ours that have exchanged their settings."""
    ends = Http2End(Role.CLIENT, client), Http2End(Role.SERVER, server)
    exchange(*ends)
    return ends


def exchange(one: Http2End, other: Http2End) -> None:
    """Carry bytes to and fro until nobody says anything."""
    while (there := one.connection.output()) or (back := other.connection.output()):
        if there:
            other.hear(there)
        else:
            one.hear(back)


class Foreign:
    """One end of another implementation."""

    def __init__(self, *, is_client: bool) -> None:
        config = H2Configuration(client_side=is_client, header_encoding=None)
        self.connection: Any = H2Connection(config)
        self.events: list[Any] = []
        self.connection.initiate_connection()

    def hear(self, data: bytes) -> list[Any]:
        """Take bytes; return what is new."""
        new: list[Any] = self.connection.receive_data(data)
        self.events += new
        return new

    def told(self, name: str) -> list[Any]:
        """Return all events whose class has this name."""
        return [event for event in self.events if type(event).__name__ == name]


def converse(ours: Http2End, foreign: Foreign) -> None:
    """Carry bytes to and fro until nobody says anything."""
    while True:
        there, back = ours.connection.output(), foreign.connection.data_to_send()
        if there:
            foreign.hear(there)
        if back:
            ours.hear(back)
        if not (there or back):
            return


def joined(parts: Sequence[Any]) -> bytes:
    """Return the data of events, one after the other."""
    return b"".join(bytes(part.data) for part in parts)
