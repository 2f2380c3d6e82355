"""Bytes that no client would send: in payloads, in messages of a stream, and on connections."""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
from collections.abc import Iterator
from typing import Any, Final

import grpc.aio

from testkit.api_methods import methods_by_request
from tests.abuse.hostile import CALL_TIMEOUT_S, PAUSE_S, SUBMIT_PATH, Hostile, span
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2

CONNECTIONS: Final = 5_000
CONNECTED_AT_ONCE: Final = 100
# Some connections send nothing at all; the others send a greeting and are then silent.
SILENT_SHARE: Final = 0.3
FRAMES_PER_CONNECTION: Final = 50
MESSAGES_PER_STREAM: Final = 100
PAYLOAD_BYTES_MAX: Final = 400
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS: Final = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
# Length, type, flags, stream: each as large as its field allows.
_FRAME: Final = struct.Struct(">BHBBI")
_U64_MAX: Final = 2**64 - 1
_U32_MAX: Final = 2**32 - 1
_OTHER_PATHS: Final = (
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    "/grpc.channelz.v1.Channelz/GetServers",
    "/viewstamp.api.watch.v1.WatchService/Watch",
    "/nothing.of.this/Name",
    "/",
)
_METADATA_KEYS: Final = (
    "viewstamp-consistency",
    "viewstamp-session",
    "viewstamp-request",
    "viewstamp-acked",
    "traceparent",
    "authorization",
)
_METADATA_VALUES: Final = (
    "",
    "at-least=" + "9" * 4_000,
    "at-least=-1",
    "Bearer x",
    "bearer vsa1..",
    str(_U64_MAX),
    "18446744073709551616",
    "00-ffffffffffffffffffffffffffffffff-ffffffffffffffff-01",
)


def _lies() -> Iterator[submit_pb2.SubmitRequest]:
    request = streams_pb2.CreateStreamRequest(name="a-lie")
    honest = span(request, 1)
    absurd = submit_pb2.Span(code=honest.code, count=_U32_MAX, items=honest.items)
    unknown = submit_pb2.Span(code=99_999, count=1, items=honest.items)
    empty = submit_pb2.Span(code=honest.code, count=0)
    cut_off = submit_pb2.Span(code=honest.code, count=1, items=honest.items[:-1])
    cases: tuple[tuple[int, int, submit_pb2.Span], ...] = (
        (0, 0, honest),
        (_U64_MAX, 0, honest),
        (1, _U64_MAX, honest),
        (1, 0, absurd),
        (1, 0, unknown),
        (1, 0, empty),
        (1, 0, cut_off),
        (1, 0, absurd),
    )
    for number, acked, one in cases:
        command = submit_pb2.CommandRequest(number=number, acked=acked, spans=[one])
        yield submit_pb2.SubmitRequest(command=command)
    for one in (absurd, unknown, empty, cut_off):
        yield submit_pb2.SubmitRequest(read=submit_pb2.ReadRequest(read_id=1, spans=[one]))


# Each message is answered, and the stream stays open.
LIES: Final = tuple(_lies())


async def fuzz_calls(hostile: Hostile) -> None:
    """Call every path of the cluster with random bytes and impossible metadata."""
    chosen = random.Random(hostile.username)
    paths = [method.path for method in methods_by_request().values()] + list(_OTHER_PATHS)
    encoded = [request().SerializeToString() for request in methods_by_request()]
    while not hostile.stopping.is_set():
        calls = [
            _raw_call(
                hostile,
                chosen.choice(paths),
                _payload(chosen, chosen.choice(encoded)),
                _metadata(chosen, hostile),
            )
            for _ in range(20)
        ]
        await asyncio.gather(*calls)


async def _raw_call(hostile: Hostile, path: str, payload: bytes, metadata: Any) -> None:
    hostile.tally.sent()
    try:
        stub: Any = hostile.channel.unary_unary(path)
        await stub(payload, metadata=metadata, timeout=CALL_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        hostile.tally.failed(error)
    except ValueError:  # the library itself refuses such metadata
        await asyncio.sleep(PAUSE_S)
    else:
        hostile.tally.answered()


def _metadata(chosen: random.Random, hostile: Hostile) -> tuple[tuple[str, str], ...]:
    own = hostile.metadata if chosen.random() < 0.7 else ()
    count = chosen.choice((0, 0, 1, 2, 20))
    return (
        *own,
        *((chosen.choice(_METADATA_KEYS), chosen.choice(_METADATA_VALUES)) for _ in range(count)),
    )


def _payload(chosen: random.Random, encoded: bytes) -> bytes:
    noise = chosen.randbytes(chosen.randrange(PAYLOAD_BYTES_MAX))
    return chosen.choice((noise, encoded + noise, b"", b"\x0a\xff\xff\xff\xff\x0f" + noise))


async def fuzz_messages(hostile: Hostile) -> None:
    """Send random messages on a Submit stream, opened rightly or wrongly."""
    chosen = random.Random(hostile.username)
    opening = submit_pb2.SubmitRequest(open=submit_pb2.OpenStream()).SerializeToString()
    while not hostile.stopping.is_set():
        call: Any = hostile.channel.stream_stream(SUBMIT_PATH)(metadata=hostile.metadata)
        try:
            async with asyncio.timeout(5):
                if chosen.random() < 0.8:
                    await call.write(opening)
                for _ in range(MESSAGES_PER_STREAM):
                    hostile.tally.sent()
                    await call.write(_message(chosen))
                await call.done_writing()
                while await call.read() is not grpc.aio.EOF:
                    hostile.tally.answered()
        except grpc.aio.AioRpcError as error:
            hostile.tally.failed(error)
        except (TimeoutError, asyncio.InvalidStateError):
            await asyncio.sleep(PAUSE_S)
        finally:
            call.cancel()


def _message(chosen: random.Random) -> bytes:
    lie = chosen.choice(LIES).SerializeToString()
    at = chosen.randrange(len(lie))
    flipped = lie[:at] + bytes((lie[at] ^ 1 << chosen.randrange(8),)) + lie[at + 1 :]
    return chosen.choice((lie, flipped, lie[:at], chosen.randbytes(40)))


async def fuzz_frames(hostile: Hostile) -> None:
    """Send the greeting of HTTP/2, and then random frames."""
    chosen = random.Random("frames")
    while not hostile.stopping.is_set():
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                await _send_frames(hostile, chosen)
        await asyncio.sleep(PAUSE_S)


async def _send_frames(hostile: Hostile, chosen: random.Random) -> None:
    reader, writer = await _connect(hostile, chosen)
    try:
        writer.write(PREFACE + SETTINGS if chosen.random() < 0.8 else chosen.randbytes(64))
        for _ in range(FRAMES_PER_CONNECTION):
            payload = chosen.randbytes(chosen.randrange(64))
            kind, flags = chosen.randrange(12), chosen.randrange(256)
            header = _FRAME.pack(0, len(payload), kind, flags, chosen.randrange(8))
            writer.write(header + payload)
            hostile.tally.sent()
            await writer.drain()
        await reader.read(1024)
        hostile.tally.answers["connections"] += 1
    finally:
        writer.close()


async def hold_connections(hostile: Hostile) -> None:
    """Open thousands of connections and keep them; open closed ones again."""
    chosen = random.Random("connections")
    held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    try:
        while not hostile.stopping.is_set():
            held = [pair for pair in held if not pair[0].at_eof() and not pair[1].is_closing()]
            count = min(CONNECTED_AT_ONCE, CONNECTIONS - len(held))
            made = await asyncio.gather(*(_held(hostile, chosen) for _ in range(count)))
            held += [pair for pair in made if pair is not None]
            most = max(hostile.tally.answers["connections held"], len(held))
            hostile.tally.answers["connections held"] = most
            await asyncio.sleep(0.1)
    finally:
        for _, writer in held:
            writer.close()


async def _held(
    hostile: Hostile, chosen: random.Random
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    hostile.tally.sent()
    try:
        async with asyncio.timeout(5):
            pair = await _connect(hostile, chosen)
            if chosen.random() > SILENT_SHARE:
                pair[1].write(PREFACE + SETTINGS)
            return pair
    except (OSError, TimeoutError):
        hostile.tally.answers["connections refused"] += 1
        return None


async def _connect(
    hostile: Hostile, chosen: random.Random
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await hostile.relay_to(chosen.choice(hostile.addresses)).connect()
