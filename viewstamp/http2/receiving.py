"""What the frames of a peer do to a connection.

Frames are cut out of the bytes that come, checked against the table of shapes, and given to the
handler of their kind. A handler changes the connection, and raises what the peer did wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from viewstamp.http2 import frames
from viewstamp.http2.connection import Connection, Role
from viewstamp.http2.errors import ConnectionFault, ErrorCode, StreamFault
from viewstamp.http2.events import (
    DataReceived,
    Event,
    FieldsReceived,
    GoingAway,
    PingAnswered,
    SettingsReceived,
    StreamReset,
)
from viewstamp.http2.fields import FieldSection, MessagePart
from viewstamp.http2.frames import (
    ACK,
    CONNECTION,
    END_HEADERS,
    END_STREAM,
    HEAD,
    HEAD_BYTES,
    PADDED,
    PREFACE,
    PRIORITY,
    SETTING_BOUNDS,
    SETTING_BYTES,
    SHAPES,
    WINDOW_BYTES_MAX,
    Kind,
    Setting,
)
from viewstamp.http2.limits import Nuisance
from viewstamp.http2.streams import MAY_RECEIVE, Http2Stream, StreamStep

_PRIORITY_BYTES: Final = 5


@dataclass(slots=True)
class _Block:
    """A block of fields of which not all frames have come."""

    stream_id: int
    is_end: bool
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0


class FrameReceiver:
    """Takes what a peer sends on one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rest = b""
        self._preface = PREFACE if connection.role is Role.SERVER else b""
        """What still has to come before the first frame."""
        self._has_settings = False
        self._block: _Block | None = None
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            Kind.DATA: self._data,
            Kind.HEADERS: self._headers,
            Kind.PRIORITY: self._priority,
            Kind.RST_STREAM: self._reset,
            Kind.SETTINGS: self._settings,
            Kind.PUSH_PROMISE: self._push,
            Kind.PING: self._ping,
            Kind.GOAWAY: self._goaway,
            Kind.WINDOW_UPDATE: self._window,
            Kind.CONTINUATION: self._continuation,
        }

    def receive(self, data: bytes, now_ms: int) -> list[Event]:
        """Take bytes, and return what they mean. Nothing is taken any more once it is over."""
        connection = self._connection
        if connection.is_over:
            return []
        connection.note_time(now_ms)
        try:
            self._read(self._rest + data if self._rest else data)
        except ConnectionFault as fault:
            connection.fail(fault)
        return connection.take_events()

    # --- Frames ---

    def _read(self, data: bytes) -> None:
        at = self._skip_preface(data) if self._preface else 0
        end, size_max = len(data), self._connection.limits.frame_bytes_max
        while end - at >= HEAD_BYTES:
            high, low, kind, flags, stream_id = HEAD.unpack_from(data, at)
            size = high << 8 | low
            if size > size_max:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, f"a frame has {size} bytes")
            begin = at + HEAD_BYTES
            if end - begin < size:
                break
            at = begin + size
            self._frame(kind, flags, stream_id & frames.STREAM_ID_MAX, data[begin:at])
        self._rest = data[at:]

    def _skip_preface(self, data: bytes) -> int:
        size = min(len(data), len(self._preface))
        if data[:size] != self._preface[:size]:
            raise ConnectionFault(ErrorCode.PROTOCOL_ERROR, "this is not HTTP/2")
        self._preface = self._preface[size:]
        return size

    def _frame(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if self._block is not None and kind != Kind.CONTINUATION:
            raise _wrong("a block of fields was interrupted")
        shape = SHAPES.get(kind)
        if shape is None:
            self._connection.charge(Nuisance.UNKNOWN)
            return
        if not self._has_settings and kind != Kind.SETTINGS:
            raise _wrong("the first frame has no settings")
        if not (shape.of_stream if stream_id else shape.of_connection):
            raise _wrong(f"{Kind(kind).name} is of stream {stream_id}")
        try:
            if not shape.bytes_min <= len(payload) <= shape.bytes_max:
                text = f"{Kind(kind).name} has {len(payload)} bytes"
                if not shape.ends_stream_only:
                    raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, text)
                if stream_id not in self._connection.streams:
                    self._connection.charge(Nuisance.PRIORITY)
                    return  # a stream that is idle cannot be reset
                raise StreamFault(stream_id, ErrorCode.FRAME_SIZE_ERROR, text)
            self._handlers[kind](flags, stream_id, payload)
        except StreamFault as fault:
            self._connection.fail_stream(fault)

    # --- Fields ---

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if flags & PADDED:
            payload = _without_padding(payload)
        if flags & PRIORITY:
            if len(payload) < _PRIORITY_BYTES:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a priority is cut off")
            payload = payload[_PRIORITY_BYTES:]
        is_end = bool(flags & END_STREAM)
        if flags & END_HEADERS:
            self._section(stream_id, payload, is_end=is_end)
        else:
            self._block = _Block(stream_id, is_end)
            self._append(self._block, payload)

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None or block.stream_id != stream_id:
            raise _wrong("CONTINUATION continues nothing")
        if not payload and not flags & END_HEADERS:
            self._connection.charge(Nuisance.EMPTY)
        self._append(block, payload)
        if flags & END_HEADERS:
            self._block = None
            self._section(stream_id, b"".join(block.pieces), is_end=block.is_end)

    def _append(self, block: _Block, piece: bytes) -> None:
        block.size += len(piece)
        if block.size > self._connection.limits.block_bytes_max:
            text = f"a block of fields has {block.size} bytes and more"
            raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, text)
        if piece:
            block.pieces.append(piece)

    def _section(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        # Each block is read, also one that nobody wants: it may change the table.
        connection = self._connection
        stream = connection.streams.get(stream_id)
        if stream is None:
            self._first_section(stream_id, block, is_end=is_end)
            return
        part = MessagePart.TRAILERS if stream.has_fields else MessagePart.RESPONSE
        section = connection.reader.read(part, block)
        if stream.state not in MAY_RECEIVE:
            raise StreamFault(stream_id, ErrorCode.STREAM_CLOSED, "fields after the end")
        _check(stream_id, section, is_end=is_end)
        if part is MessagePart.RESPONSE and not section.is_informational:
            stream.begin_remote(section)
        connection.events.append(FieldsReceived(stream_id, section, is_end))
        if is_end:
            self._end(stream)

    def _first_section(self, stream_id: int, block: bytes, *, is_end: bool) -> None:
        connection = self._connection
        if not self._is_new(stream_id):
            connection.reader.read(MessagePart.TRAILERS, block)
            self._late(stream_id)
            return
        connection.last_peer_id = stream_id
        section = connection.reader.read(MessagePart.REQUEST, block)
        if connection.served_until is not None:
            return  # the peer was told, or will be: it asks somebody else
        if len(connection.streams) >= connection.limits.streams_max:
            raise StreamFault(stream_id, ErrorCode.REFUSED_STREAM, "too many streams")
        _check(stream_id, section, is_end=is_end)
        stream = connection.new_stream(stream_id)
        stream.begin_remote(section)
        connection.events.append(FieldsReceived(stream_id, section, is_end))
        if is_end:
            self._end(stream)

    def _is_new(self, stream_id: int) -> bool:
        """Whether a stream is one that the peer may open now. Raises ConnectionFault."""
        connection = self._connection
        is_peers = connection.role is Role.SERVER and stream_id % 2 == 1
        if not is_peers and not self._was_ours(stream_id):
            raise _wrong(f"the peer may not open stream {stream_id}")
        return is_peers and stream_id > connection.last_peer_id

    def _was_ours(self, stream_id: int) -> bool:
        connection = self._connection
        is_ours = connection.role is Role.CLIENT and stream_id % 2 == 1
        return is_ours and stream_id <= connection.last_local_id

    # --- Data ---

    def _data(self, flags: int, stream_id: int, payload: bytes) -> None:
        connection, size = self._connection, len(payload)
        connection.incoming.use(size)
        data = _without_padding(payload) if flags & PADDED else payload
        is_end = bool(flags & END_STREAM)
        if not data and not is_end:
            connection.charge(Nuisance.EMPTY)
        stream = connection.streams.get(stream_id)
        if stream is None:
            connection.incoming.give_back(size)
            self._check_is_not_idle(stream_id)
            self._late(stream_id)
            return
        try:
            _use(stream, size, len(data), is_end=is_end)
        except StreamFault:
            connection.incoming.give_back(size)
            raise
        if size > len(data):
            connection.give_back(stream_id, size - len(data))
        connection.events.append(DataReceived(stream_id, data, is_end))
        if is_end:
            self._end(stream)

    def _end(self, stream: Http2Stream) -> None:
        if stream.left_bytes:
            text = f"{stream.left_bytes} bytes of content-length are missing"
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, text)
        stream.move(StreamStep.REMOTE_END)
        self._connection.forget_if_closed(stream)

    # --- Streams that ended ---

    def _reset(self, _: int, stream_id: int, payload: bytes) -> None:
        connection = self._connection
        stream = connection.streams.get(stream_id)
        if stream is None:
            self._check_is_not_idle(stream_id)
            connection.charge(Nuisance.LATE)
            return
        if connection.role is Role.SERVER:
            connection.charge(Nuisance.RESET)
        connection.drop(stream)
        code = frames.read_code(payload)
        connection.events.append(StreamReset(stream_id, code, by_peer=True, message=""))

    def _late(self, stream_id: int) -> None:
        """Take note of a frame that came after its stream was closed. Raises ConnectionFault."""
        self._connection.charge(Nuisance.LATE)
        if stream_id not in self._connection.forgotten and not self._is_unserved(stream_id):
            text = f"a frame of stream {stream_id}, which is closed"
            raise ConnectionFault(ErrorCode.STREAM_CLOSED, text)

    def _is_unserved(self, stream_id: int) -> bool:
        until = self._connection.served_until
        return until is not None and stream_id > until

    def _check_is_not_idle(self, stream_id: int) -> None:
        connection = self._connection
        is_peers = connection.role is Role.SERVER and stream_id % 2 == 1
        if is_peers and stream_id <= connection.last_peer_id:
            return
        if not self._was_ours(stream_id):
            raise _wrong(f"a frame of stream {stream_id}, which nobody has opened")

    # --- Windows ---

    def _window(self, _: int, stream_id: int, payload: bytes) -> None:
        connection, size = self._connection, frames.read_u31(payload)
        connection.charge(Nuisance.WINDOW)
        if stream_id == CONNECTION:
            connection.told(connection.outgoing.allow(size))
            return
        stream = connection.streams.get(stream_id)
        if stream is None:
            self._check_is_not_idle(stream_id)
        elif connection.outgoing.allow_stream(stream, size):
            connection.told((stream,))

    # --- The connection ---

    def _settings(self, flags: int, _: int, payload: bytes) -> None:
        connection = self._connection
        if flags & ACK:
            if payload:
                raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "an answer to settings has some")
            if not self._has_settings:
                raise _wrong("the first frame has no settings")
            return
        if len(payload) % SETTING_BYTES:
            raise ConnectionFault(ErrorCode.FRAME_SIZE_ERROR, "a setting is cut off")
        connection.charge(Nuisance.SETTINGS)
        if not self._has_settings:
            # What the first settings do not say is without a limit (section 6.5.2).
            connection.peer_streams_max = frames.STREAM_ID_MAX
        self._has_settings = True
        self._apply(dict(self._checked(payload)))
        connection.outgoing.add(frames.frame(Kind.SETTINGS, ACK, CONNECTION))
        connection.events.append(SettingsReceived(connection.peer_streams_max))

    def _checked(self, payload: bytes) -> list[tuple[int, int]]:
        settings = list(frames.read_settings(payload))
        for setting, value in settings:
            least, most, code = SETTING_BOUNDS.get(setting, (0, value, ErrorCode.NO_ERROR))
            if not least <= value <= most:
                raise ConnectionFault(code, f"{Setting(setting).name} is {value}")
            if setting == Setting.ENABLE_PUSH and value and self._connection.role is Role.CLIENT:
                raise _wrong("a server allows us to push")
        return settings

    def _apply(self, told: dict[int, int]) -> None:
        """Do what the last value of each setting says."""
        connection, outgoing = self._connection, self._connection.outgoing
        if Setting.HEADER_TABLE_SIZE in told:
            outgoing.must_empty_table = True
        outgoing.frame_bytes_max = told.get(Setting.MAX_FRAME_SIZE, outgoing.frame_bytes_max)
        connection.peer_streams_max = told.get(
            Setting.MAX_CONCURRENT_STREAMS, connection.peer_streams_max
        )
        window_bytes = told.get(Setting.INITIAL_WINDOW_SIZE, outgoing.stream_window_bytes)
        change = window_bytes - outgoing.stream_window_bytes
        outgoing.stream_window_bytes = window_bytes
        if change:
            self._change_windows(change)

    def _change_windows(self, change: int) -> None:
        connection = self._connection
        for stream in list(connection.streams.values()):
            stream.send_window += change
            if stream.send_window > WINDOW_BYTES_MAX:
                raise ConnectionFault(ErrorCode.FLOW_CONTROL_ERROR, "a window is too large")
            if change > 0 and connection.outgoing.pump(stream):
                connection.told((stream,))

    def _ping(self, flags: int, _: int, payload: bytes) -> None:
        connection = self._connection
        if flags & ACK:
            connection.events.append(PingAnswered(payload))
            return
        connection.charge(Nuisance.PING)
        connection.outgoing.add(frames.frame(Kind.PING, ACK, CONNECTION, payload))

    def _goaway(self, _: int, __: int, payload: bytes) -> None:
        connection = self._connection
        last_stream_id, code, text = frames.read_goaway(payload)
        connection.peer_goes_away = True
        connection.events.append(GoingAway(last_stream_id, code, text))
        if connection.role is Role.CLIENT:
            for stream in [
                each for each in connection.streams.values() if each.id > last_stream_id
            ]:
                connection.drop(stream)
                connection.forgotten[stream.id] = None
                reset = StreamReset(stream.id, ErrorCode.REFUSED_STREAM, True, "not served")
                connection.events.append(reset)

    def _priority(self, _: int, __: int, ___: bytes) -> None:
        self._connection.charge(Nuisance.PRIORITY)

    def _push(self, _: int, __: int, ___: bytes) -> None:
        raise _wrong("a push, which we do not allow")


def _wrong(message: str) -> ConnectionFault:
    return ConnectionFault(ErrorCode.PROTOCOL_ERROR, message)


def _without_padding(payload: bytes) -> bytes:
    """Return what is not padding (RFC 9113, section 6.1). Raises ConnectionFault."""
    if not payload or payload[0] >= len(payload):
        raise _wrong("the padding is longer than the frame")
    return payload[1 : len(payload) - payload[0]]


def _check(stream_id: int, section: FieldSection, *, is_end: bool) -> None:
    """Raise StreamFault if a section makes the message malformed."""
    flaw = section.flaw
    if not flaw and section.part is MessagePart.TRAILERS and not is_end:
        flaw = "trailers do not end the stream"
    if not flaw and section.is_informational and is_end:
        flaw = "an informational response ends the stream"
    if flaw:
        raise StreamFault(stream_id, ErrorCode.PROTOCOL_ERROR, flaw)


def _use(stream: Http2Stream, size: int, data_bytes: int, *, is_end: bool) -> None:
    """Note data on a stream. Raises StreamFault."""
    if stream.state not in MAY_RECEIVE:
        raise StreamFault(stream.id, ErrorCode.STREAM_CLOSED, "data after the end")
    if not stream.has_fields:
        raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "data before the response")
    stream.receive_window -= size
    if stream.receive_window < 0:
        raise StreamFault(stream.id, ErrorCode.FLOW_CONTROL_ERROR, "more than the window allows")
    if stream.left_bytes is not None:
        stream.left_bytes -= data_bytes
        if stream.left_bytes < 0:
            raise StreamFault(stream.id, ErrorCode.PROTOCOL_ERROR, "more than content-length")
