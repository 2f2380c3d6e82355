"""What a connection tells the layer above, in the order in which it happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from viewstamp.http2.fields import FieldSection


@dataclass(slots=True)
class FieldsReceived:
    """A request, a response or trailers came; `is_end` says that nothing follows."""

    stream_id: int
    section: FieldSection
    is_end: bool


@dataclass(slots=True)
class DataReceived:
    """A part of a message came. Its bytes have to be returned when they are used."""

    stream_id: int
    data: bytes
    is_end: bool


@dataclass(slots=True)
class StreamReset:
    """A stream ended early: the peer did that, or broke a rule on it."""

    stream_id: int
    code: int
    by_peer: bool
    message: str


@dataclass(slots=True)
class QueueEmptied:
    """Everything that waited for a window on a stream has left."""

    stream_id: int


@dataclass(slots=True)
class SettingsReceived:
    """The peer has said how many streams it takes at once, among others."""

    streams_max: int


@dataclass(slots=True)
class PingAnswered:
    """The peer lives."""

    payload: bytes


@dataclass(slots=True)
class GoingAway:
    """The peer takes no new streams, and does not serve those after the last one."""

    last_stream_id: int
    code: int
    text: bytes


@dataclass(slots=True)
class ConnectionFailed:
    """The peer broke a rule; what is to be sent tells it, and then the connection is over."""

    code: int
    message: str


Event: TypeAlias = (
    FieldsReceived
    | DataReceived
    | StreamReset
    | QueueEmptied
    | SettingsReceived
    | PingAnswered
    | GoingAway
    | ConnectionFailed
)
