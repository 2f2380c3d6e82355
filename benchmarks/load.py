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
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import grpc.aio

from benchmarks.load_etcd import (
    get_by_clients,
    get_concurrent,
    put_by_clients,
    put_concurrent,
    put_over,
    put_sequential,
    put_transactions,
)
from benchmarks.load_target import (
    BATCHED_IN_FLIGHT,
    CALLERS,
    CONNECTIONS,
    CREATE_TOPIC,
    READ_KEYS,
    UPDATE_TOPIC,
    WATCHED,
    WATCHED_KEYS,
    LoadTarget,
    LoadTopics,
    answered,
    by_callers,
    key_name,
    one_after_another,
)
from benchmarks.wire import CallShape, Samples, header_block, keep_in_flight
from viewstamp import client as library
from viewstamp import grpc_transport, limits, transports
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.streams.v1 import streams_pb2 as streams_options
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.telemetry import settings

# --- Viewstamp ---


async def create_sequential(target: LoadTarget) -> Samples:
    """One caller, through the client library (Submit)."""
    async with target.client() as (client, topics):
        samples = target.samples()
        await one_after_another(samples, lambda: client.call(topics.request()))
    return samples


async def create_sequential_unary(target: LoadTarget) -> Samples:
    """One caller, through the generated stub."""
    async with (
        target.client() as (_, topics),
        grpc_transport.open_channel(target.address, ()) as channel,
    ):
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


async def update_unary(target: LoadTarget) -> Samples:
    """256 unary calls in flight, which change the topics of WATCHED over and over."""
    numbers, stream = count(), common_pb2.Identifier(name=WATCHED)

    def body() -> bytes:
        # An update that changes nothing would show watchers nothing.
        number = next(numbers)
        topic = common_pb2.Identifier(name=key_name(number % WATCHED_KEYS))
        options = streams_options.TopicOptions(message_expiry_us=number + 1)
        request = streams_pb2.UpdateTopicRequest(stream=stream, topic=topic, options=options)
        return request.SerializeToString()

    block = header_block(UPDATE_TOPIC.path, target.address, await target.token())
    samples, shape = target.samples(), CallShape(CALLERS, CONNECTIONS)
    await keep_in_flight(target.address, block, body, shape, samples)
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


# What etcd reads comes before its transactions: after those, etcd 3.4 answers reads
# ten times slower, which would distort the comparison.
WORKLOADS: Final[dict[str, Callable[[LoadTarget], Coroutine[Any, Any, Samples]]]] = {
    "read_concurrent": read_concurrent,
    "create_sequential": create_sequential,
    "create_sequential_unary": create_sequential_unary,
    "create_concurrent": create_concurrent,
    "create_unary": create_unary,
    "update_unary": update_unary,
    "create_unary_by_clients": create_unary_by_clients,
    "submit_batches_100": lambda target: submit_batches(target, 100),
    "submit_batches_1000": lambda target: submit_batches(target, 1000),
    "etcd_get_concurrent": get_concurrent,
    "etcd_get_by_clients": get_by_clients,
    "etcd_put_sequential": put_sequential,
    "etcd_put_concurrent": put_concurrent,
    "etcd_put_over": put_over,
    "etcd_put_by_clients": put_by_clients,
    "etcd_put_transactions": put_transactions,
}


# These change what `benchmarks.watchers` has made before.
OF_WATCHED: Final = frozenset({"update_unary"})


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
    parser.add_argument("--leave", action="store_true", help="delete nothing in the end")
    transports.add_argument(parser, transports.chosen())
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
