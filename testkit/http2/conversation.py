"""One conversation of two ends, drawn from a seed: what they do, and what each of them has to see.

On a true way everything arrives as it was sent, no end blames the other, and nothing is left when
all streams have ended. On a way that changes bytes an end may fail the connection, and nothing
else: it raises nothing, keeps within its limits, and is silent once it is over.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from viewstamp.http2 import (
    Connection,
    ConnectionFailed,
    ErrorCode,
    Event,
    FrameReceiver,
    Limits,
    Role,
    StreamClosed,
    StreamReset,
    write_block,
)
from viewstamp.http2.events import DataReceived, FieldsReceived
from viewstamp.http2.fields import MessagePart
from viewstamp.http2.frames import CONNECTION, FRAME_BYTES_MIN, HEAD, HEAD_BYTES, Kind, frame
from viewstamp.limits import KIB

REQUEST: Final = write_block(
    [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/service/method"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
)
RESPONSE: Final = write_block([(b":status", b"200"), (b"content-type", b"application/grpc")])
TRAILERS: Final = write_block([(b"grpc-status", b"0")])
# How many acts a conversation has, how much one act sends, and how long it takes.
ACTS: Final = 200
DATA_BYTES_MAX: Final = 40 * KIB
ACT_MS_MAX: Final = 40
# One act in so many is of its kind.
_RESET_ONE_IN: Final = 40
_PING_ONE_IN: Final = 60
_END_ONE_IN: Final = 4
# One delivery in so many is changed on a way that changes bytes.
_CHANGED_ONE_IN: Final = 12


class BrokenRuleError(Exception):
    """What an end did and may not do; the text has the seed."""


@dataclass(slots=True)
class TalkingEnd:
    """One end: what it has sent and heard of each stream, and what it has not used yet."""

    connection: Connection
    receiver: FrameReceiver
    sent: dict[int, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    heard: dict[int, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    unused: list[tuple[int, int]] = field(default_factory=list)
    """Streams, and how many bytes of them were not given back."""
    broken: set[int] = field(default_factory=set)
    """Streams that were reset."""
    under_way: bytearray = field(default_factory=bytearray)
    """Bytes that this end has sent and the other one has not heard."""
    has_answered: set[int] = field(default_factory=set)
    """Streams whose response has begun."""

    @classmethod
    def of(cls, role: Role, limits: Limits) -> TalkingEnd:
        """Begin."""
        connection = Connection(role, limits)
        connection.begin()
        return cls(connection, FrameReceiver(connection))


class FrameConversation:
    """Two ends that talk; `frames` counts what they have heard."""

    def __init__(self, seed: int, *, is_changed: bool) -> None:
        self.seed = seed
        self.frames = 0
        self.failures = 0
        """How many ends have failed the connection."""
        self._is_changed = is_changed
        self._random = Random(f"conversation {seed} {is_changed}")
        self._now_ms = 0
        limits = [self._limits() for _ in range(2)]
        self.client, self.server = (
            TalkingEnd.of(Role.CLIENT, limits[0]),
            TalkingEnd.of(Role.SERVER, limits[1]),
        )

    def _limits(self) -> Limits:
        draw = self._random.choice
        return Limits(
            streams_max=draw((1, 3, 100)),
            stream_window_bytes=draw((1_000, 65_535, 256 * KIB)),
            window_bytes=draw((1_000, 65_535, 128 * KIB)),
        )

    def hold(self) -> None:
        """Hold the whole conversation. Raises BrokenRuleError."""
        for _ in range(ACTS):
            self._now_ms += self._random.randint(0, ACT_MS_MAX)
            end = self._random.choice((self.client, self.server))
            with suppress(StreamClosed):  # an end may try what is too late
                self._act(end)
            self._deliver(end, whole=False)
            self._check_limits()
        if not self._is_changed:
            self._finish()

    # --- What ends do ---

    def _act(self, end: TalkingEnd) -> None:
        random, connection = self._random, end.connection
        streams = sorted(connection.streams)
        if not random.randrange(_PING_ONE_IN):
            connection.ping(random.randbytes(8))
        elif end is self.client and (not streams or random.random() < 0.2):
            if self._may_open():
                connection.open(REQUEST)
        elif streams and not random.randrange(_RESET_ONE_IN):
            stream_id = random.choice(streams)
            end.broken.add(stream_id)
            connection.reset(stream_id, ErrorCode.CANCEL)
        elif end.unused and random.random() < 0.4:
            self._give_back(end, random.randrange(len(end.unused)))
        elif streams:
            self._send(end, random.choice(streams))

    def _may_open(self) -> bool:
        connection = self.client.connection
        return connection.may_open and len(connection.streams) < connection.peer_streams_max

    def _send(self, end: TalkingEnd, stream_id: int) -> None:
        random, connection = self._random, end.connection
        if end is self.server and stream_id not in end.has_answered:
            connection.send_fields(stream_id, RESPONSE)
            end.has_answered.add(stream_id)
            return
        if not random.randrange(_END_ONE_IN):
            self._end(end, stream_id)
            return
        data = random.randbytes(random.choice((0, 1, random.randint(0, DATA_BYTES_MAX))))
        connection.send_data(stream_id, data)
        end.sent[stream_id] += data

    def _end(self, end: TalkingEnd, stream_id: int) -> None:
        if end is self.server:
            end.connection.send_trailers(stream_id, TRAILERS)
        else:
            end.connection.send_data(stream_id, b"", is_end=True)

    def _give_back(self, end: TalkingEnd, index: int) -> None:
        stream_id, size = end.unused.pop(index)
        end.connection.give_back(stream_id, size)

    # --- The way between them ---

    def _deliver(self, end: TalkingEnd, *, whole: bool) -> bool:
        """Bring some of what an end has sent to the other one; return whether anything was sent."""
        end.under_way += end.connection.output()
        self._note(end, end.connection.take_events())
        if not end.under_way:
            return False
        size = len(end.under_way) if whole else self._random.randint(0, len(end.under_way))
        data = bytes(end.under_way[:size])
        del end.under_way[:size]
        self._hear(self.server if end is self.client else self.client, self._carried(data))
        return True

    def _carried(self, data: bytes) -> bytes:
        random = self._random
        if not self._is_changed or not data or random.randrange(_CHANGED_ONE_IN):
            return data
        at = random.randrange(len(data))
        until = min(len(data), at + random.randint(1, 20))
        match random.randrange(4):
            case 0:
                return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]
            case 1:
                return data[:at] + data[until:]
            case 2:
                return data[:until] + data[at:]
            case _:
                return data + _any_frame(random)

    def _hear(self, end: TalkingEnd, data: bytes) -> None:
        was_over = end.connection.is_over
        self.frames += _count(data)
        events = end.receiver.receive(data, self._now_ms)
        if was_over and events:
            raise self._broken(f"an end that is over tells of {events[0]}")
        self._note(end, events)

    def _note(self, end: TalkingEnd, events: list[Event]) -> None:
        for event in events:
            match event:
                case DataReceived(stream_id, data, _):
                    end.heard[stream_id] += data
                    end.unused.append((stream_id, len(data)))
                case StreamReset(stream_id, by_peer=by_peer, message=message):
                    end.broken.add(stream_id)
                    if not by_peer:
                        self._is_strange(f"an end breaks stream {stream_id}: {message}")
                case FieldsReceived(stream_id, section, _):
                    is_request = section.part is MessagePart.REQUEST
                    if is_request is not (end is self.server and stream_id not in end.heard):
                        self._is_strange(f"stream {stream_id} begins with {section.part}")
                    end.heard[stream_id] += b""
                case ConnectionFailed(_, message):
                    self.failures += 1
                    self._is_strange(f"an end blames the other one: {message}")
                case _:
                    pass

    def _is_strange(self, what: str) -> None:
        if not self._is_changed:
            raise self._broken(what)

    def _broken(self, what: str) -> BrokenRuleError:
        way = "that changes bytes" if self._is_changed else "that is true"
        return BrokenRuleError(f"seed {self.seed}, on a way {way}: {what}")

    # --- What has to hold ---

    def _check_limits(self) -> None:
        for end in (self.client, self.server):
            connection, limits = end.connection, end.connection.limits
            if connection.role is Role.SERVER and len(connection.streams) > limits.streams_max:
                raise self._broken(f"the server keeps {len(connection.streams)} streams")
            if len(connection.forgotten) > limits.forgotten_max:
                raise self._broken(f"{len(connection.forgotten)} streams are remembered")
            if len(connection.events) > ACTS:
                raise self._broken("events pile up")

    def _finish(self) -> None:
        """End all streams; everything that was sent arrives, and nothing is left."""
        self._carry_all()
        for end in (self.client, self.server):
            for stream_id in sorted(end.connection.streams):
                self._close(end, stream_id)
        self._carry_all()
        broken = self.client.broken | self.server.broken
        for one, other in ((self.client, self.server), (self.server, self.client)):
            if one.connection.streams:
                raise self._broken(f"streams are left: {sorted(one.connection.streams)}")
            for stream_id, sent in sorted(one.sent.items()):
                heard = bytes(other.heard.get(stream_id, b""))
                if not sent.startswith(heard) or (stream_id not in broken and heard != sent):
                    raise self._broken(f"of {len(sent)} bytes of {stream_id} came {len(heard)}")

    def _carry_all(self) -> None:
        """Bring everything to the other side, and use it, until nothing is under way."""
        self._use_all()
        while self._deliver(self.client, whole=True) or self._deliver(self.server, whole=True):
            self._use_all()

    def _use_all(self) -> None:
        for end in (self.client, self.server):
            while end.unused:
                self._give_back(end, 0)

    def _close(self, end: TalkingEnd, stream_id: int) -> None:
        with suppress(StreamClosed):  # it may have ended its side already
            if end is self.server and stream_id not in end.has_answered:
                end.connection.send_fields(stream_id, RESPONSE)
            self._end(end, stream_id)


def _any_frame(random: Random) -> bytes:
    kind = random.choice((*Kind, 0x2A))
    stream_id = random.choice((CONNECTION, 1, 2, 3, random.getrandbits(31)))
    return frame(
        kind, random.getrandbits(8), stream_id, random.randbytes(random.choice((0, 4, 8, 30)))
    )


def _count(data: bytes) -> int:
    """Return about how many frames there are: bytes may begin within one."""
    at = found = 0
    while at + HEAD_BYTES <= len(data):
        high, low, *_ = HEAD.unpack_from(data, at)
        found += 1
        at += HEAD_BYTES + min(high << 8 | low, FRAME_BYTES_MIN)
    return found
