"""What a hostile peer may cost: floods end the connection, and memory stays within limits.

Method: one kind of frame over and over, at one moment and spread over time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Final

import pytest

from tests.viewstamp.http2.dialogue import REQUEST, REQUEST_BLOCK, Http2End, pair
from viewstamp.http2 import ConnectionFailed, ErrorCode, Limits, write_block
from viewstamp.http2.blocks import REMEMBERED_MAX, BlockReader
from viewstamp.http2.fields import MessagePart
from viewstamp.http2.frames import (
    CONNECTION,
    END_HEADERS,
    END_STREAM,
    Kind,
    frame,
    reset_frame,
    window_frame,
)
from viewstamp.http2.limits import RATES, Nuisance

OPENED: Final = frame(Kind.HEADERS, END_HEADERS, 1, REQUEST_BLOCK)
CALM: Final = ErrorCode.ENHANCE_YOUR_CALM


def taken_back(number: int) -> bytes:
    """Return a stream that is opened and reset at once."""
    stream_id = 2 * number + 1
    return frame(Kind.HEADERS, END_HEADERS | END_STREAM, stream_id, REQUEST_BLOCK) + reset_frame(
        stream_id, ErrorCode.CANCEL
    )


def faulty(number: int) -> bytes:
    """Return a stream whose request is malformed."""
    return frame(Kind.HEADERS, END_HEADERS, 2 * number + 1, write_block(REQUEST[1:]))


FLOODS: Final[dict[Nuisance, Callable[[int], bytes]]] = {
    Nuisance.RESET: taken_back,
    Nuisance.FAULT: faulty,
    Nuisance.PING: lambda _: frame(Kind.PING, 0, CONNECTION, bytes(8)),
    Nuisance.SETTINGS: lambda _: frame(Kind.SETTINGS, 0, CONNECTION),
    Nuisance.PRIORITY: lambda _: frame(Kind.PRIORITY, 0, 1, bytes(5)),
    Nuisance.EMPTY: lambda number: OPENED * (not number) + frame(Kind.DATA, 0, 1),
    Nuisance.WINDOW: lambda _: window_frame(CONNECTION, 1),
    Nuisance.LATE: lambda number: taken_back(0) * (not number) + reset_frame(1, 8),
    Nuisance.UNKNOWN: lambda _: frame(0xFB, 0, CONNECTION),
}


def ends_at(server: Http2End, nuisance: Nuisance, interval_ms: float) -> int | None:
    """Return how many frames a server bears, None if it bears a second of them and a burst."""
    rate = RATES[nuisance]
    for number in range(rate.burst + rate.per_s + 2):
        server.hear(FLOODS[nuisance](number), int(number * interval_ms))
        server.connection.output()
        if server.connection.is_over:
            return number
    return None


@pytest.mark.parametrize("nuisance", Nuisance)
def test_a_flood_ends_the_connection(nuisance: Nuisance) -> None:
    """At one moment the burst is borne, and a little more is not; the peer is told to calm down."""
    _, server = pair()
    borne = ends_at(server, nuisance, interval_ms=0)
    assert borne is not None
    assert RATES[nuisance].burst - 2 <= borne <= RATES[nuisance].burst + 1
    assert [failed.code for failed in server.told(ConnectionFailed)] == [CALM]


@pytest.mark.parametrize("nuisance", Nuisance)
def test_what_comes_slowly_is_borne(nuisance: Nuisance) -> None:
    """At the rate that is allowed it goes on for ever."""
    _, server = pair()
    assert ends_at(server, nuisance, interval_ms=1_000 / RATES[nuisance].per_s) is None


def test_a_block_in_many_pieces_ends_at_its_limit() -> None:
    """CONTINUATION frames without an end are not collected without end (CVE-2024-27316)."""
    _, server = pair(server=Limits(block_bytes_max=40_000))
    server.hear(frame(Kind.HEADERS, 0, 1, b"x" * 16_000))
    server.hear(frame(Kind.CONTINUATION, 0, 1, b"x" * 16_000))
    assert not server.connection.is_over
    server.hear(frame(Kind.CONTINUATION, 0, 1, b"x" * 16_000))
    assert [failed.code for failed in server.told(ConnectionFailed)] == [CALM]


def test_empty_pieces_of_a_block_end_the_connection() -> None:
    """CONTINUATION frames without content count as frames that carry nothing."""
    _, server = pair()
    server.hear(frame(Kind.HEADERS, 0, 1))
    server.hear(frame(Kind.CONTINUATION, 0, 1) * (RATES[Nuisance.EMPTY].burst + 1))
    assert [failed.code for failed in server.told(ConnectionFailed)] == [CALM]


def test_a_bomb_of_fields_is_not_unpacked() -> None:
    """Few bytes that stand for many fields end the connection before the fields are made."""
    _, server = pair(server=Limits(section_bytes_max=16_384))
    large = b"\x40\x01a\x7f\xa1\x0f" + b"x" * 2_080  # into the table: 2 KB under index 62
    bomb = large + b"\xbe" * 10_000
    server.hear(frame(Kind.HEADERS, END_HEADERS, 1, bomb))
    assert [failed.code for failed in server.told(ConnectionFailed)] == [CALM]


def test_settings_with_many_windows_change_each_window_once() -> None:
    """A frame may name the same setting thousands of times: the last one counts."""
    _, server = pair()
    server.hear(OPENED)
    values = b"".join(b"\0\4" + size.to_bytes(4, "big") for size in range(2_000))
    server.hear(frame(Kind.SETTINGS, 0, CONNECTION, values))
    assert server.connection.streams[1].send_window == 1_999


def test_streams_that_ended_leave_nothing() -> None:
    """After ten thousand streams, reset or served, only the last thousand numbers are known."""
    _, server = pair()
    for number in range(10_000):
        server.hear(frame(Kind.HEADERS, END_HEADERS, 2 * number + 1, REQUEST_BLOCK))
        server.connection.reset(2 * number + 1, ErrorCode.CANCEL)
        server.connection.output()
    assert server.connection.streams == {}
    assert len(server.connection.forgotten) == Limits().forgotten_max
    assert sys.getsizeof(server.connection.forgotten) < 100_000


def test_few_blocks_are_remembered() -> None:
    """A peer whose blocks always differ fills no memory."""
    reader = BlockReader(section_bytes_max=16_384)
    for number in range(10 * REMEMBERED_MAX):
        reader.read(MessagePart.TRAILERS, write_block([(b"number", b"%d" % number)]))
    assert len(reader.known) <= REMEMBERED_MAX


def test_a_block_means_what_the_table_says_now() -> None:
    """The same bytes mean something else once the table has changed, and are read again."""
    reader = BlockReader(section_bytes_max=16_384)
    first, second, index = b"\x40\x01a\x01b", b"\x40\x01c\x01d", b"\xbe"
    reader.read(MessagePart.TRAILERS, first)
    assert reader.read(MessagePart.TRAILERS, index).fields == ((b"a", b"b"),)
    assert reader.read(MessagePart.TRAILERS, index) is reader.read(MessagePart.TRAILERS, index)
    reader.read(MessagePart.TRAILERS, second)
    assert reader.read(MessagePart.TRAILERS, index).fields == ((b"c", b"d"),)
    reader.read(MessagePart.TRAILERS, b"\x20\x3f\xe1\x1f" + first)
    assert reader.read(MessagePart.TRAILERS, index).fields == ((b"a", b"b"),)
