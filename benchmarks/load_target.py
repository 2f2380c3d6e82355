"""What every load has: the target, topics to create, and callers."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc.aio

from benchmarks.wire import Samples
from viewstamp import client as library
from viewstamp import limits
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client.methods import method_of
from viewstamp.errors import retry_delay_ms
from viewstamp.framing import frame
from viewstamp.telemetry import settings
from viewstamp.telemetry.settings import Telemetry

VALUE_BYTES: Final = 256
NAME_BYTES: Final = 32
NUMBER_DIGITS: Final = 12
WARM_UP_S: Final = 1.0
CALLERS: Final = 256
CONNECTIONS: Final = 8
TRANSACTION_PUTS: Final = 128
# Commands in flight on both sides in the comparison of batches with transactions.
BATCHED_IN_FLIGHT: Final = CALLERS * TRANSACTION_PUTS
# Room for four million topics, which the fastest workload does not fill.
STREAMS: Final = 1000
STREAMS_DELETED_TOGETHER: Final = 25
READ_KEYS: Final = 1000
# The stream whose topics, or the keys of etcd that, are changed over and over.
WATCHED: Final = "watched"
WATCHED_KEYS: Final = 1000
CREATE_TOPIC: Final = method_of(streams_pb2.CreateTopicRequest())
UPDATE_TOPIC: Final = method_of(streams_pb2.UpdateTopicRequest())


def key_name(number: int) -> str:
    """Return the name of a topic of WATCHED, or of a key of etcd that is changed over and over."""
    return f"{WATCHED}-{number:0{NUMBER_DIGITS}}"


class Copies:
    """Makes copies of an encoded message that holds the number 0; each copy gets its own number.

    Copying keeps the load generator cheap, because it shares its processors with the servers.
    """

    def __init__(self, encoded: bytes) -> None:
        before, after = encoded.replace(b"%", b"%%").split(b"0" * NUMBER_DIGITS)
        self._pattern = before + b"%%0%dd" % NUMBER_DIGITS + after

    def numbered(self, first: int, size: int) -> bytes:
        """Return that many copies, joined, with the numbers from `first` on."""
        return self._pattern * size % tuple(range(first, first + size))


class LoadTopics:
    """Makes CreateTopic requests of one size, each for a new topic.

    With `request_bytes` 0 names have 32 bytes.
    """

    def __init__(self, stream_ids: list[int], request_bytes: int) -> None:
        self._streams = [common_pb2.Identifier(id=number) for number in stream_ids]
        self._room = len(stream_ids) * limits.TOPICS_PER_STREAM_MAX
        self._numbers = count()
        self._padding = ""
        self._copies: tuple[int, Copies] | None = None  # of the requests of one stream
        first = self.request()
        missing = NAME_BYTES - len(first.name)
        if request_bytes:
            # A name of more than 127 bytes takes one more byte for its length.
            missing = request_bytes - first.ByteSize() - 1
        self._padding = "x" * missing
        self._numbers = count()

    def request(self) -> streams_pb2.CreateTopicRequest:
        """Return the next request. Raises RuntimeError when every stream is full."""
        number = next(self._numbers)
        self._check_room(number + 1)
        return self._request(number // limits.TOPICS_PER_STREAM_MAX, number)

    def encoded(self) -> bytes:
        """Return the next request, encoded."""
        return self.request().SerializeToString()

    def framed(self, size: int) -> bytes:
        """Return the next requests, as the items of a span."""
        first = next(self._numbers)
        self._check_room(first + size)
        self._numbers = count(first + size)
        parts = []
        while size:
            stream, position = divmod(first, limits.TOPICS_PER_STREAM_MAX)
            taken = min(size, limits.TOPICS_PER_STREAM_MAX - position)
            parts.append(self._copies_for(stream).numbered(first, taken))
            first, size = first + taken, size - taken
        return b"".join(parts)

    def _copies_for(self, stream: int) -> Copies:
        if self._copies is None or self._copies[0] != stream:
            self._copies = stream, Copies(frame(self._request(stream, 0).SerializeToString()))
        return self._copies[1]

    def _request(self, stream: int, number: int) -> streams_pb2.CreateTopicRequest:
        name = f"topic-{number:0{NUMBER_DIGITS}}-{self._padding}"
        return streams_pb2.CreateTopicRequest(stream=self._streams[stream], name=name)

    def _check_room(self, topics: int) -> None:
        if topics > self._room:
            raise RuntimeError(f"{self._room} topics are there already: make more streams")


class LoadTarget:
    """The target and the options from the command line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.address: str = options.address
        self.password_file: Path | None = options.password_file
        self.duration_s: float = options.seconds
        self.request_bytes: int = options.request_bytes
        self._leaves: bool = options.leave
        self._telemetry: Telemetry | None = None
        if options.telemetry_directory is not None:
            self._telemetry = Telemetry("client", settings.settings_of(options))

    def samples(self) -> Samples:
        """Return empty samples whose time begins now."""
        return Samples(WARM_UP_S, self.duration_s)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[library.Client, LoadTopics]]:
        """Yield a client and streams for topics; they are deleted in the end, unless left."""
        assert self.password_file is not None, "this workload needs --password-file"
        password = self.password_file.read_text().strip()
        client = await library.connect(
            self.address, username="root", password=password, telemetry=self._telemetry
        )
        async with client:
            made = await client.batch(
                streams_pb2.CreateStreamRequest(name=f"load-{os.getpid()}-{number}")
                for number in range(STREAMS)
            )
            stream_ids = [response.stream_id for response in map(answered, made)]
            yield client, LoadTopics(stream_ids, self.request_bytes)
            for start in () if self._leaves else range(0, STREAMS, STREAMS_DELETED_TOGETHER):
                await delete_streams(client, stream_ids[start : start + STREAMS_DELETED_TOGETHER])

    async def token(self) -> str:
        """Return an access token of root."""
        assert self.password_file is not None, "this workload needs --password-file"
        password = self.password_file.read_text().strip()
        async with grpc.aio.insecure_channel(self.address) as channel:
            login = users_pb2.LoginRequest(username="root", password=password)
            return str((await library.unary(channel, login)).access_token)


async def delete_streams(client: library.Client, stream_ids: Sequence[int]) -> None:
    """Delete streams together. Full streams may not fit one log entry: repeat for the rest.

    The first one always fits, so this ends.
    """
    while stream_ids:
        results = await client.batch(
            streams_pb2.DeleteStreamRequest(stream=common_pb2.Identifier(id=number))
            for number in stream_ids
        )
        left, delay_ms = [], 0
        for number, result in zip(stream_ids, results, strict=True):
            if isinstance(result, library.Refusal) and (told_ms := retry_delay_ms(result)):
                left.append(number)
                delay_ms = max(delay_ms, told_ms)
            else:
                answered(result)
        stream_ids = left
        await asyncio.sleep(delay_ms / 1000)


def answered(result: Any) -> Any:
    """Return a result. If it is a refusal, raise it."""
    if isinstance(result, library.Refusal):
        raise result
    return result


async def one_after_another(samples: Samples, call: Callable[[], Awaitable[Any]]) -> None:
    """Call until the samples are complete."""
    while (sent := time.perf_counter()) < samples.ends:
        await call()
        samples.add(sent, time.perf_counter())


async def by_callers(samples: Samples, callers: int, call: Callable[[], Awaitable[Any]]) -> None:
    """Let that many callers call, each one after another."""

    async def caller() -> None:
        while (sent := time.perf_counter()) < samples.ends:
            await call()
            samples.add(sent, time.perf_counter())

    await asyncio.gather(*(caller() for _ in range(callers)))
