"""Keeps watches open in a process of its own, and counts what they show.

`python -m benchmarks.watch_load --help`. It prints "ready" once all watches are open. When its
input ends, it waits until nothing more comes, and prints one JSON object. Both systems are watched
through the same transport, so that watchers cost the machine the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import uvloop

from benchmarks import etcd_client as etcd
from benchmarks.load_target import WATCHED, LoadTarget, key_name
from viewstamp import grpc_transport, transports
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client.watch_calls import WATCH_PATH

# Nothing that was committed takes as long until it is shown.
QUIET_S: Final = 1.0
OPENED_AT_ONCE: Final = 32
ALL_KEYS: Final = b"\0"

# Opens one watch: of the key of a number, or of everything for None. The first item comes once it
# is open; each later one is how many changes a message shows.
Opener: TypeAlias = Callable[[Any, int | None], AsyncIterator[int]]


@dataclass(slots=True)
class CountedChanges:
    """What the watches have shown so far."""

    changes: int = 0
    messages: int = 0


async def topic_changes(channel: Any, number: int | None, token: str) -> AsyncIterator[int]:
    """Watch a topic of the stream WATCHED, or everything."""
    request = watch_pb2.WatchRequest(progress_notifications=True)
    if number is not None:
        request.stream.CopyFrom(common_pb2.Identifier(name=WATCHED))
        request.topic.CopyFrom(common_pb2.Identifier(name=key_name(number)))
    call = channel.unary_stream(
        WATCH_PATH,
        request_serializer=watch_pb2.WatchRequest.SerializeToString,
        response_deserializer=watch_pb2.WatchResponse.FromString,
    )(request, metadata=(("authorization", f"Bearer {token}"),))
    async for message in call:
        yield len(message.changes)


async def key_changes(channel: Any, number: int | None) -> AsyncIterator[int]:
    """Watch a key of etcd, or all of them."""
    key = ALL_KEYS if number is None else key_name(number).encode()
    created = etcd.CLASSES["WatchCreateRequest"](key=key, range_end=ALL_KEYS * (number is None))
    call = channel.stream_stream(
        etcd.path("Watch", "Watch"),
        request_serializer=etcd.CLASSES["WatchRequest"].SerializeToString,
        response_deserializer=etcd.CLASSES["WatchResponse"].FromString,
    )()
    await call.write(etcd.CLASSES["WatchRequest"](create_request=created))
    async for message in call:
        yield len(message.events)


async def topics_opener(options: argparse.Namespace) -> Opener:
    """Return how to watch topics."""
    token = await LoadTarget(options).token()
    return lambda channel, number: topic_changes(channel, number, token)


async def keys_opener(options: argparse.Namespace) -> Opener:
    """Return how to watch keys of etcd."""
    return key_changes


SYSTEMS: Final[Mapping[str, Callable[[argparse.Namespace], Any]]] = MappingProxyType(
    {"viewstamp": topics_opener, "etcd": keys_opener}
)


async def follow(changes: AsyncIterator[int], shown: CountedChanges, opened: asyncio.Event) -> None:
    """Count what a watch shows, for as long as it goes on."""
    async for count in changes:
        if not opened.is_set():
            opened.set()
        shown.changes += count
        shown.messages += 1
    raise RuntimeError("a watch ended by itself")


class WatchCrowd:
    """Many watches, spread over some connections."""

    def __init__(self, opener: Opener, channels: Sequence[Any], group: asyncio.TaskGroup) -> None:
        self.shown = CountedChanges()
        self._opener = opener
        self._channels = channels
        self._group = group
        self._following: list[asyncio.Task[None]] = []

    async def open(self, numbers: Sequence[int | None]) -> None:
        """Open a watch of each number, and wait until all are open."""
        room = asyncio.Semaphore(OPENED_AT_ONCE)
        await asyncio.gather(*(self._open(*each, room) for each in enumerate(numbers)))

    async def close(self) -> None:
        """Wait until nothing more comes, and end all watches."""
        seen = -1
        while seen != self.shown.changes:
            seen = self.shown.changes
            await asyncio.sleep(QUIET_S)
        for task in self._following:
            task.cancel()

    async def _open(self, place: int, number: int | None, room: asyncio.Semaphore) -> None:
        is_open = asyncio.Event()
        changes = self._opener(self._channels[place % len(self._channels)], number)
        async with room:
            task = self._group.create_task(follow(changes, self.shown, is_open))
            self._following.append(task)
            await is_open.wait()


async def watched(options: argparse.Namespace) -> CountedChanges:
    """Open the watches, say so, and follow them until the input ends and nothing more comes."""
    opener = await SYSTEMS[options.system](options)
    numbers = [None if options.everything else number for number in range(options.watchers)]
    async with AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc_transport.open_channel(options.address, ()))
            for _ in range(options.connections)
        ]
        group = await stack.enter_async_context(asyncio.TaskGroup())
        crowd = WatchCrowd(opener, channels, group)
        await crowd.open(numbers)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await crowd.close()
    return crowd.shown


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watch_load", description=__doc__)
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--address", required=True, help="host:port")
    parser.add_argument("--password-file", type=Path, help="root's password, for Viewstamp")
    parser.add_argument("--watchers", type=int, required=True, help="how many watches")
    parser.add_argument("--connections", type=int, required=True, help="that they share")
    parser.add_argument("--everything", action="store_true", help="each watches all there is")
    parser.set_defaults(seconds=0.0, request_bytes=0, leave=True, telemetry_directory=None)
    return parser.parse_args(arguments)


def main() -> int:
    """Watch, and print what was shown."""
    transports.use(transports.WIRE)
    shown = uvloop.run(watched(parse()))
    print(json.dumps({"changes": shown.changes, "messages": shown.messages}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
