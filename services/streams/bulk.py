"""CreateTopic by the span: the hot path, see benchmarks/machine_streams.py.

The requests of a span repeat few streams, few counts and few options. So a request is cut into
three pieces of bytes, and the meaning of a piece is looked up once per span:

    0A length <stream> 1A | length <name> | partitions_count, options, ...

A request is *plain* if it has this shape and `create_topic` would make its topic. Here only plain
requests are handled, and nothing is decided that `create_topic` would decide otherwise: the first
that is not plain ends the run, and the general way answers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from google.protobuf.message import DecodeError

from services.runtime.domain import Call
from services.streams import access as gates
from services.streams.lookup import authenticate, find_stream_by_key
from services.streams.model import NEXT_TOPIC_ID, StreamsState, Topic
from services.streams.options import DEFAULT_OPTIONS, Options
from viewstamp import limits
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.errors import Refusal
from viewstamp.framing import FRAME_TAG, encode_varint, frame

_NAME_TAG: Final = b"\x1a"
_TOPIC_ID_TAG: Final = 0x10
# Distinct pieces whose meaning is kept for the next spans.
_PIECES_CACHED_MAX: Final = 4096
# A length of one byte; longer names are rare, and left to the general way.
_SHORT_MAX: Final = 0x7F
# The lower seven bits of a varint that goes on.
_LOW_BITS: Final = tuple(bytes((0x80 | low,)) for low in range(0x80))
# The same as Topic(...), at half the price.
_new_row: Final = tuple.__new__


class _NotPlainError(Exception):
    """A request that the general way has to answer."""


@lru_cache(_PIECES_CACHED_MAX)
def _key_of(piece: bytes) -> int | str:
    """Return the id or name of the stream that is named. Raises _NotPlainError or DecodeError."""
    encoded = piece[2:-1]
    if piece != frame(encoded) + _NAME_TAG:  # a frame has the tag of field 1, the stream
        raise _NotPlainError
    identifier = common_pb2.Identifier.FromString(encoded)
    key = identifier.id or identifier.name
    if not key:
        raise _NotPlainError
    return key


@lru_cache(_PIECES_CACHED_MAX)
def _rest_of(piece: bytes) -> api.CreateTopicRequest:
    """Return what a request says after the name. Raises _NotPlainError or DecodeError."""
    rest = api.CreateTopicRequest.FromString(piece)
    # An empty name, which would take the place of the first, shows in the bytes alone.
    is_more = rest.HasField("stream") or rest.name or rest.SerializeToString() != piece
    if is_more or rest.validate_only or rest.partitions_count > limits.PARTITIONS_PER_REQUEST_MAX:
        raise _NotPlainError
    return rest


# A stream in which the caller may make topics: its id, the names in it (not to be changed here),
# the topics that are made, by name, and how many these may be.
_Place: TypeAlias = tuple[int, dict[str, Topic], dict[str, Topic], int]


class _Places(dict[bytes, _Place]):
    """The places by the bytes that name them, looked up at first sight."""

    def __init__(self, state: StreamsState, call: Call) -> None:
        super().__init__()
        self.made: dict[int, dict[str, Topic]] = {}  # by stream id and name
        self._state = state
        self._access = authenticate(state, call)

    def __missing__(self, piece: bytes) -> _Place:
        """Look up who is named. Raises _NotPlainError, Refusal or DecodeError."""
        key = _key_of(piece)
        stream = find_stream_by_key(self._state, self._access, gates.CREATE_TOPIC, key)
        topics = self._state.topics.of_stream(stream.id)
        made = self.made.setdefault(stream.id, {})
        room = limits.TOPICS_PER_STREAM_MAX - len(topics.ids)
        place = self[piece] = stream.id, topics.by_name, made, room
        return place


class _Rests(dict[bytes, tuple[int, Options]]):
    """Counts of partitions and options by the bytes that stand for them."""

    def __init__(self, state: StreamsState) -> None:
        super().__init__()
        self._pool = state.options_pool

    def __missing__(self, piece: bytes) -> tuple[int, Options]:
        """Look at the rest of a request. Raises _NotPlainError, Refusal or DecodeError."""
        rest = _rest_of(piece)
        options = self._pool.created(rest.options) if rest.HasField("options") else DEFAULT_OPTIONS
        self[piece] = rest.partitions_count, options
        return self[piece]


def create_topics(state: StreamsState, encoded: Sequence[bytes], call: Call) -> tuple[int, bytes]:
    """Create topics up to the first request that is not plain.

    Returns how many were created, and their answers framed. `call` has the first one's revision.
    Where brokers are registered, topics get replicas, and the general way chooses these.
    """
    if state.brokers.rows:
        return 0, b""
    try:
        places = _Places(state, call)
    except Refusal:
        return 0, b""
    first_id = state.peek_id(NEXT_TOPIC_ID)
    topics = _plan(places, _Rests(state), encoded, first_id, call)
    count = len(topics)
    if count:
        state.topics.add_all(topics, places.made)
        state.counters.put(NEXT_TOPIC_ID, first_id + count)
    return count, framed_ids(first_id, count)


def _plan(
    places: _Places, rests: _Rests, encoded: Sequence[bytes], first_id: int, call: Call
) -> list[Topic]:
    """Put topics into `made` of their places, and return them. Changes no state."""
    now, revision, id_ = call.timestamp, call.revision, first_id
    topics: list[Topic] = []
    try:
        for item in encoded:
            size_at = item[1] + 3
            stream_id, taken, made, room = places[item[:size_at]]
            size = item[size_at]
            end = size_at + 1 + size
            count, options = rests[item[end:]]
            name = item[size_at + 1 : end].decode("ascii")
            if not 0 < size == len(name) <= _SHORT_MAX or not name.isprintable():
                break
            if name in taken or name in made or len(made) >= room:
                break
            row = (id_, stream_id, name, count, (), options, now, revision, revision, 0)
            topic = made[name] = _new_row(Topic, row)
            topics.append(topic)
            id_ += 1
            revision += 1
    except (_NotPlainError, Refusal, DecodeError, IndexError, UnicodeDecodeError):
        pass  # found before anything was made of the request
    return topics


def framed_ids(first: int, count: int) -> bytes:
    """Return `count` framed CreateTopicResponses without header: `first`, `first` + 1, ..."""
    parts: list[bytes] = []
    end = first + count
    while first < end:
        high, low = divmod(first, len(_LOW_BITS))
        until = min(end, first - low + len(_LOW_BITS))
        if high:  # all of one length, and alike but for one byte
            tail = encode_varint(high)
            start = bytes((FRAME_TAG, 2 + len(tail), _TOPIC_ID_TAG))
            parts += (start, (tail + start).join(_LOW_BITS[low : low + until - first]), tail)
        else:
            parts += (frame(bytes((_TOPIC_ID_TAG, id_))) for id_ in range(first, until))
        first = until
    return b"".join(parts)
