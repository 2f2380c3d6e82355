"""Makes one measurement in a process of its own: prints one JSON object.

`python -m benchmarks.load --help`. Every workload warms up, then counts the answers within its
duration. A failed call fails the measurement. The value of a put has 256 bytes, about as much as
the record of a topic that a client of etcd would have to store. A CreateTopic has a name of 32
bytes and no other field, or the size that `--request-bytes` sets.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc.aio

from benchmarks import etcd_client as etcd
from benchmarks.wire import CallShape, Samples, header_block, keep_in_flight
from viewstamp import client as library
from viewstamp import limits, transports
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
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
CREATE_TOPIC: Final = method_of(streams_pb2.CreateTopicRequest())


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
        self._telemetry: Telemetry | None = None
        if options.telemetry_directory is not None:
            self._telemetry = Telemetry("client", settings.settings_of(options))

    def samples(self) -> Samples:
        """Return empty samples whose time begins now."""
        return Samples(WARM_UP_S, self.duration_s)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[tuple[library.Client, LoadTopics]]:
        """Yield a client and streams for topics; the streams are deleted in the end."""
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
            for start in range(0, STREAMS, STREAMS_DELETED_TOGETHER):
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


# --- Viewstamp ---


async def create_sequential(target: LoadTarget) -> Samples:
    """One caller, through the client library (Submit)."""
    async with target.client() as (client, topics):
        samples = target.samples()
        await one_after_another(samples, lambda: client.call(topics.request()))
    return samples


async def create_sequential_unary(target: LoadTarget) -> Samples:
    """One caller, through the generated stub."""
    async with target.client() as (_, topics), grpc.aio.insecure_channel(target.address) as channel:
        metadata = (("authorization", f"Bearer {await target.token()}"),)
        create = _create_topic(channel)
        samples = target.samples()
        await one_after_another(samples, lambda: create(topics.request(), metadata=metadata))
    return samples


async def create_concurrent(target: LoadTarget) -> Samples:
    """256 callers through the client library, which packs waiting commands."""
    async with target.client() as (client, topics):
        samples = target.samples()
        await by_callers(samples, CALLERS, lambda: client.call(topics.request()))
    return samples


async def create_unary_by_clients(target: LoadTarget) -> Samples:
    """256 callers through grpc's own client, as an application without our library would."""
    async with target.client() as (_, topics), grpc.aio.insecure_channel(target.address) as channel:
        metadata = (("authorization", f"Bearer {await target.token()}"),)
        create = _create_topic(channel)
        samples = target.samples()
        await by_callers(samples, CALLERS, lambda: create(topics.request(), metadata=metadata))
    return samples


def _create_topic(channel: grpc.aio.Channel) -> Any:
    """Return what the generated stub has."""
    return channel.unary_unary(
        CREATE_TOPIC.path,
        request_serializer=streams_pb2.CreateTopicRequest.SerializeToString,
        response_deserializer=streams_pb2.CreateTopicResponse.FromString,
    )


async def create_unary(target: LoadTarget) -> Samples:
    """256 unary calls in flight, by the same generator as for etcd."""
    async with target.client() as (_, topics):
        block = header_block(CREATE_TOPIC.path, target.address, await target.token())
        samples = target.samples()
        shape = CallShape(CALLERS, CONNECTIONS)
        await keep_in_flight(target.address, block, topics.encoded, shape, samples)
    return samples


async def submit_batches(target: LoadTarget, size: int) -> Samples:
    """Batches on Submit streams, the windows of several sessions kept full.

    The number of commands in flight equals the number of puts in etcd's transactions. On both sides
    requests are encoded beforehand and answers only counted, so that neither pays for a client
    library. A refusal fails the measurement.
    """
    async with target.client() as (_, topics), AsyncExitStack() as stack:
        endpoint, token = library.Endpoint(target.address), await target.token()
        sessions = [
            await stack.enter_async_context(
                library.RawSession(endpoint, token, takes_packed_answers=True)
            )
            for _ in range(BATCHED_IN_FLIGHT // (limits.SESSION_WINDOW_REQUESTS * size))
        ]
        samples = target.samples()
        await asyncio.gather(*(keep_window_full(s, topics, size, samples) for s in sessions))
    return samples


async def keep_window_full(
    session: library.RawSession, topics: LoadTopics, size: int, samples: Samples
) -> None:
    """Send batches until the samples are complete, as many at a time as the session allows."""
    sent_at: deque[float] = deque()
    numbers = count(1)
    acked = 0
    while (now := time.perf_counter()) < samples.ends or sent_at:
        room = limits.SESSION_WINDOW_REQUESTS - len(sent_at)
        if room and now < samples.ends:
            requests = [batch(next(numbers), acked, topics, size) for _ in range(room)]
            sent_at.extend([now] * room)
            await session.send(
                submit_pb2.SubmitRequest(commands=submit_pb2.CommandRequests(requests=requests))
            )
        replies = answers_of((await session.receive()).message)
        received = time.perf_counter()
        for reply in replies:
            if reply.HasField("error") or reply.spans[0].errors:
                raise RuntimeError(f"batch {reply.number} was refused: {reply}")
            samples.add(sent_at.popleft(), received, size)
        acked += len(replies)


def batch(number: int, acked: int, topics: LoadTopics, size: int) -> submit_pb2.CommandRequest:
    """Return the next request of a session."""
    span = submit_pb2.Span(code=CREATE_TOPIC.code, count=size, items=topics.framed(size))
    return submit_pb2.CommandRequest(number=number, acked=acked, spans=[span])


def answers_of(message: submit_pb2.SubmitResponse) -> Sequence[submit_pb2.CommandReply]:
    """Return the answers to commands that a message holds."""
    return message.commands.replies if message.HasField("commands") else (message.command,)


async def read_concurrent(target: LoadTarget) -> Samples:
    """256 callers that read topics through the client library, linearizably."""
    async with target.client() as (client, topics):
        made = [topics.request() for _ in range(READ_KEYS)]
        for result in await client.batch(made):
            answered(result)
        names = count()
        requests = [
            streams_pb2.GetTopicRequest(
                stream=request.stream, topic=common_pb2.Identifier(name=request.name)
            )
            for request in made
        ]
        samples = target.samples()
        await by_callers(samples, CALLERS, lambda: client.call(requests[next(names) % READ_KEYS]))
    return samples


# --- etcd ---


class Puts:
    """Makes puts of new keys."""

    def __init__(self) -> None:
        self._numbers = count()
        self._value = os.urandom(VALUE_BYTES)
        # Joined messages form one message, so a transaction of one put is also a part of a larger
        # one.
        put = etcd.RequestOp(request_put=self._put(0))
        self._copies = Copies(etcd.TxnRequest(success=[put]).SerializeToString())

    def request(self) -> Any:
        """Return the next put."""
        return self._put(next(self._numbers))

    def encoded(self) -> bytes:
        """Return the next put, encoded."""
        encoded: bytes = self.request().SerializeToString()
        return encoded

    def encoded_transaction(self) -> bytes:
        """Return a transaction of the next 128 puts, encoded."""
        first = next(self._numbers)
        self._numbers = count(first + TRANSACTION_PUTS)
        return self._copies.numbered(first, TRANSACTION_PUTS)

    def _put(self, number: int) -> Any:
        key = f"load-{os.getpid()}-{number:0{NUMBER_DIGITS}}".encode()
        return etcd.PutRequest(key=key, value=self._value)


async def put_sequential(target: LoadTarget) -> Samples:
    """One caller, through grpc's own client."""
    puts, client = Puts(), etcd.EtcdClient(target.address)
    samples = target.samples()
    await one_after_another(samples, lambda: client.put(puts.request()))
    await client.close()
    return samples


async def put_concurrent(target: LoadTarget) -> Samples:
    """256 puts in flight."""
    block = header_block(etcd.path("Put"), target.address)
    samples, shape = target.samples(), CallShape(CALLERS, CONNECTIONS)
    await keep_in_flight(target.address, block, Puts().encoded, shape, samples)
    return samples


async def put_by_clients(target: LoadTarget) -> Samples:
    """256 callers through grpc's own client, as an application in Python would."""
    puts, client = Puts(), etcd.EtcdClient(target.address)
    samples = target.samples()
    await by_callers(samples, CALLERS, lambda: client.put(puts.request()))
    await client.close()
    return samples


async def put_transactions(target: LoadTarget) -> Samples:
    """Transactions of 128 puts, 256 in flight."""
    block = header_block(etcd.path("Txn"), target.address)
    samples, shape = target.samples(), CallShape(CALLERS, CONNECTIONS, TRANSACTION_PUTS)
    await keep_in_flight(target.address, block, Puts().encoded_transaction, shape, samples)
    return samples


async def _ranges(client: etcd.EtcdClient) -> list[Any]:
    """Put keys, and return requests that read one each."""
    puts = Puts()
    made = [puts.request() for _ in range(READ_KEYS)]
    for request in made:
        await client.put(request)
    return [etcd.RangeRequest(key=request.key) for request in made]


async def get_by_clients(target: LoadTarget) -> Samples:
    """256 callers of linearizable gets through grpc's own client."""
    client, numbers = etcd.EtcdClient(target.address), count()
    ranges = await _ranges(client)
    samples = target.samples()
    await by_callers(samples, CALLERS, lambda: client.range(ranges[next(numbers) % READ_KEYS]))
    await client.close()
    return samples


async def get_concurrent(target: LoadTarget) -> Samples:
    """256 linearizable gets in flight."""
    client, numbers = etcd.EtcdClient(target.address), count()
    bodies = [request.SerializeToString() for request in await _ranges(client)]
    await client.close()
    block = header_block(etcd.path("Range"), target.address)
    samples, shape = target.samples(), CallShape(CALLERS, CONNECTIONS)
    await keep_in_flight(
        target.address, block, lambda: bodies[next(numbers) % READ_KEYS], shape, samples
    )
    return samples


# In the order of measurement. Reads come first: after large transactions a get of etcd 3.4 stays
# ten times slower, which would distort the comparison.
WORKLOADS: Final[dict[str, Callable[[LoadTarget], Coroutine[Any, Any, Samples]]]] = {
    "read_concurrent": read_concurrent,
    "create_sequential": create_sequential,
    "create_sequential_unary": create_sequential_unary,
    "create_concurrent": create_concurrent,
    "create_unary": create_unary,
    "create_unary_by_clients": create_unary_by_clients,
    "submit_batches_100": lambda target: submit_batches(target, 100),
    "submit_batches_1000": lambda target: submit_batches(target, 1000),
    "etcd_get_concurrent": get_concurrent,
    "etcd_get_by_clients": get_by_clients,
    "etcd_put_sequential": put_sequential,
    "etcd_put_concurrent": put_concurrent,
    "etcd_put_by_clients": put_by_clients,
    "etcd_put_transactions": put_transactions,
}


def percentile_ms(ordered: Sequence[float], percent: int) -> float:
    """Return a percentile in ms of ascending latencies in seconds."""
    return round(ordered[len(ordered) * percent // 100] * 1000, 3)


def summary(samples: Samples) -> dict[str, float]:
    """Return the figures; latencies are per message, and a batch is one message."""
    ordered = sorted(samples.latencies_s)
    if not ordered:
        raise RuntimeError("nothing was answered while measuring")

    return {
        "commands_per_s": round(samples.commands / samples.duration_s, 1),
        "p50_ms": percentile_ms(ordered, 50),
        "p99_ms": percentile_ms(ordered, 99),
        "load_cpu_s": round(time.process_time(), 2),
    }


def main() -> int:
    """Measure one workload and print the result."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--address", required=True, help="host:port")
    parser.add_argument("--password-file", type=Path, help="root's password, for Viewstamp")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument(
        "--request-bytes", type=int, default=0, help="size of a CreateTopic, from 160"
    )
    transports.add_argument(parser)
    settings.add_arguments(parser)
    options = parser.parse_args()
    transports.use(options.transport)
    # A load generator keeps its objects to its end, so a search for garbage costs and finds none.
    gc.disable()
    samples = asyncio.run(WORKLOADS[options.workload](LoadTarget(options)))
    print(json.dumps(summary(samples)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
