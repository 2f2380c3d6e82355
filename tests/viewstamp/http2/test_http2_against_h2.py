"""Random frames, to our end and to that of the h2 library: both have to judge alike.

Method: property-based. Sequences of frames, right ones and broken ones, go to a server of each. A
table names where ours judges otherwise, and the section of RFC 9113 that says so.
"""

from __future__ import annotations

from typing import Final

from h2.exceptions import ProtocolError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.viewstamp.http2.dialogue import REQUEST_BLOCK, TRAILERS_BLOCK, Foreign, Http2End
from viewstamp.http2 import ConnectionFailed, ErrorCode, Role, write_block
from viewstamp.http2.frames import CONNECTION, PREFACE, Kind, frame

BLOCKS: Final = (
    REQUEST_BLOCK,
    REQUEST_BLOCK,
    TRAILERS_BLOCK,
    write_block([(b":method", b"GET")]),
    write_block([(b"Name", b"x")]),
    REQUEST_BLOCK[:10],
    b"\x80",
    b"\x3f\xe1\x1f" + REQUEST_BLOCK,
)
NUMBERS: Final = [bytes(4), b"\0\0\0\1", b"\0\0\0\x08", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff"]
SETTINGS: Final = [b"", *(b"\0" + bytes([key]) + value for key in range(7) for value in NUMBERS)]
ANY: Final = st.binary(max_size=12)
PAYLOADS: Final[dict[Kind, st.SearchStrategy[bytes]]] = {
    Kind.DATA: st.sampled_from([b"", b"x", bytes(200)]) | ANY,
    Kind.HEADERS: st.sampled_from(BLOCKS) | ANY,
    Kind.PRIORITY: st.sampled_from([b"\0\0\0\x0b\1"]) | ANY,
    Kind.RST_STREAM: st.sampled_from(NUMBERS) | ANY,
    Kind.SETTINGS: st.sampled_from(SETTINGS) | ANY,
    Kind.PUSH_PROMISE: ANY,
    Kind.PING: st.just(bytes(8)) | ANY,
    Kind.WINDOW_UPDATE: st.sampled_from(NUMBERS) | ANY,
    Kind.CONTINUATION: st.sampled_from(BLOCKS) | ANY,
}
FLAGS: Final = [0, 0, 1, 4, 4, 5, 5, 8, 12, 0x20, 0x24, 0x25]
STREAMS: Final = [0, 0, 1, 1, 1, 3, 3, 5, 2]
FRAMES: Final = st.sampled_from(list(PAYLOADS)).flatmap(
    lambda kind: st.builds(
        frame, st.just(kind), st.sampled_from(FLAGS), st.sampled_from(STREAMS), PAYLOADS[kind]
    )
)
# Where h2 has an end of the connection with one code, and we have this one, or none.
OTHER_CODES: Final = {
    (ErrorCode.COMPRESSION_ERROR, ErrorCode.PROTOCOL_ERROR): "4.3: a block that cannot be read",
    (ErrorCode.FRAME_SIZE_ERROR, ErrorCode.PROTOCOL_ERROR): "6.5: an answer to settings with some",
    (
        ErrorCode.PROTOCOL_ERROR,
        ErrorCode.FRAME_SIZE_ERROR,
    ): "6.1, 6.10: padding, interrupted blocks",
    (ErrorCode.PROTOCOL_ERROR, ErrorCode.STREAM_CLOSED): "6.10: CONTINUATION of nothing",
    (ErrorCode.STREAM_CLOSED, ErrorCode.PROTOCOL_ERROR): "5.1.1: a stream that was skipped",
    (ErrorCode.FLOW_CONTROL_ERROR, ErrorCode.PROTOCOL_ERROR): "6.9: the first bit means nothing",
    (None, ErrorCode.PROTOCOL_ERROR): "8.1.1: a malformed message ends its stream",
    (None, ErrorCode.FRAME_SIZE_ERROR): "6.3: a priority of another size",
    (None, ErrorCode.FLOW_CONTROL_ERROR): "6.9.1: a window of a stream that overflows",
    (ErrorCode.STREAM_CLOSED, None): "5.1.1: data of a stream that was skipped",
    (ErrorCode.PROTOCOL_ERROR, None): "6.4, 6.9: resets and windows of idle streams",
}


def verdict_of_ours(end: Http2End, sent: bytes) -> ErrorCode | None:
    """Return the code with which our connection ends at some bytes, None if it goes on."""
    ended = [event for event in end.hear(sent) if isinstance(event, ConnectionFailed)]
    return ErrorCode(ended[0].code) if ended else None


def verdict_of_theirs(end: Foreign, sent: bytes) -> ErrorCode | None:
    """Return the code with which theirs ends."""
    try:
        end.hear(sent)
    except ProtocolError as error:
        return ErrorCode(error.error_code)
    return None


@settings(max_examples=200, deadline=None)
@given(st.lists(FRAMES, max_size=12))
def test_both_judge_alike(sent: list[bytes]) -> None:
    """Frame by frame both go on, or end with one code, but for what the table names."""
    ours, theirs = Http2End(Role.SERVER), Foreign(is_client=False)
    mine = other = None
    for each in [PREFACE + frame(Kind.SETTINGS, 0, CONNECTION), *sent]:
        if mine is other is None:
            mine, other = verdict_of_ours(ours, each), verdict_of_theirs(theirs, each)
    assert mine == other or (mine, other) in OTHER_CODES


@settings(max_examples=200, deadline=None)
@given(st.lists(FRAMES | st.binary(max_size=40), max_size=12), st.integers(1, 50))
def test_whatever_comes_is_an_event(sent: list[bytes], size: int) -> None:
    """No bytes raise anything, however they are cut, and what they cost stays within limits."""
    whole, cut = Http2End(Role.SERVER), Http2End(Role.SERVER)
    stream = PREFACE + frame(Kind.SETTINGS, 0, CONNECTION) + b"".join(sent)
    whole.hear(stream)
    for at in range(0, len(stream), size):
        cut.hear(stream[at : at + size])
    assert str(whole.events) == str(cut.events)
    assert whole.connection.output() == cut.connection.output()
    limits = whole.connection.limits
    assert len(whole.connection.streams) <= limits.streams_max
    assert len(whole.connection.forgotten) <= limits.forgotten_max
