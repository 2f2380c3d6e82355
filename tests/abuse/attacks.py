"""The attacks of hostile callers, one function each, repeated until a caller is stopped.

All callers are authenticated, except those that flood logins, connections and frames. Each sends
the most expensive legal requests of its kind, in the largest batches.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import Message

from tests.abuse import fuzzing, scene
from tests.abuse.hostile import PAUSE_S, Hostile, span, spans
from viewstamp import limits
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client.identifiers import identifier
from viewstamp.client.methods import method_of
from viewstamp.framing import frame

ALL: Final = limits.REQUEST_COMMANDS_MAX
LOGINS_AT_ONCE: Final = 200
SESSIONS_OF_REFUSALS: Final = 10
READS_IN_A_MESSAGE: Final = 200
FIRES: Final = 20
Attack = Callable[[Hostile], Awaitable[None]]
_WIDE_STREAM: Final = identifier(scene.STREAM)
_WIDE_TOPIC: Final = identifier(scene.WIDE_TOPIC)


async def alternate_partitions(hostile: Hostile) -> None:
    """Add and remove a partition of a topic with many groups, 8,190 times in one request."""
    joins = [_join(f"group-{number}") for number in range(scene.WIDE_GROUPS)]
    batch = _alternating(ALL)
    await _submit_again_and_again(hostile, [joins, batch])


async def cascade(hostile: Hostile) -> None:
    """Fill a stream with topics and delete it."""
    for number in itertools.count():
        if hostile.stopping.is_set():
            return
        name = f"cascade-{hostile.username}-{number}"
        stream = identifier(name)
        topics: list[Message] = [
            streams_pb2.CreateTopicRequest(stream=stream, name=f"t{topic}", partitions_count=1)
            for topic in range(limits.TOPICS_PER_STREAM_MAX)
        ]
        await _submit_once(
            hostile,
            [
                [streams_pb2.CreateStreamRequest(name=name)],
                topics,
                [streams_pb2.DeleteStreamRequest(stream=stream)],
            ],
        )


async def heartbeat(hostile: Hostile) -> None:
    """Send 8,190 heartbeats in one request, for a member with many partitions."""
    beat = groups_pb2.HeartbeatConsumerGroupRequest(
        stream=_WIDE_STREAM, topic=_WIDE_TOPIC, group=identifier("group-0"), member_epoch=1
    )
    await _submit_again_and_again(hostile, [[_join("group-0")], [beat] * ALL])


async def collect_refusals(hostile: Hostile) -> None:
    """Send requests of which all 8,190 commands are refused, with long names; acknowledge none."""
    request = streams_pb2.DeleteStreamRequest(stream=identifier("\u00ad" * 54))
    while not hostile.stopping.is_set():
        await asyncio.gather(
            *(_unacknowledged(hostile, request) for _ in range(SESSIONS_OF_REFUSALS))
        )


async def _unacknowledged(hostile: Hostile, request: Message) -> None:
    session_id = await hostile.register()
    if not session_id:
        return
    async with hostile.submit(session_id) as stream:
        for number in range(1, limits.SESSION_WINDOW_REQUESTS + 1):
            await stream.send_commands(number, 0, span(request, ALL))
        for _ in range(limits.SESSION_WINDOW_REQUESTS):
            await stream.receive()


async def transact(hostile: Hostile) -> None:
    """Change partitions 128 times in one transaction that fails at its end."""
    parts = [_part(request) for request in _alternating(limits.TRANSACTION_PARTS_MAX - 1)]
    parts.append(_part(streams_pb2.DeleteStreamRequest(stream=identifier("nobody's"))))
    while not hostile.stopping.is_set():
        await hostile.call(submit_pb2.TransactRequest(parts=parts))


async def read_pages(hostile: Hostile) -> None:
    """Ask for the largest page thousands of times in a message, and read all answers."""
    request = streams_pb2.ListTopicsRequest(
        stream=identifier(scene.FULL_STREAM), page_size=limits.PAGE_SIZE_MAX
    )
    while not hostile.stopping.is_set():
        async with hostile.submit(0) as stream:
            for read_id in range(1, FIRES):
                await stream.send_reads(read_id, span(request, READS_IN_A_MESSAGE))
                await stream.receive()
                await stream.send_reads(read_id, span(request, ALL))
                await stream.receive()


async def read_and_leave(hostile: Hostile) -> None:
    """Send many messages of expensive reads, and close the stream before the answers."""
    request = streams_pb2.ListTopicsRequest(
        stream=identifier(scene.FULL_STREAM), page_size=limits.PAGE_SIZE_MAX
    )
    while not hostile.stopping.is_set():
        async with hostile.submit(0) as stream:
            for read_id in range(1, FIRES + 1):
                await stream.send_reads(read_id, span(request, ALL))
            await asyncio.sleep(0.3)


async def read_slowly(hostile: Hostile) -> None:
    """Send many reads, and never read an answer."""
    request = streams_pb2.ListTopicsRequest(
        stream=identifier(scene.FULL_STREAM), page_size=limits.PAGE_SIZE_MAX
    )
    while not hostile.stopping.is_set():
        async with hostile.submit(0) as stream:
            for read_id in itertools.count(1):
                if hostile.stopping.is_set():
                    return
                async with asyncio.timeout(5):
                    await stream.send_reads(read_id, span(request, 20))


async def walk_state(hostile: Hostile) -> None:
    """Ask for digests of the whole state again and again."""
    request = cluster_pb2.GetStatusRequest(include_digests=True)
    while not hostile.stopping.is_set():
        await asyncio.gather(*(hostile.call(request) for _ in range(FIRES)))


async def flood_logins(hostile: Hostile) -> None:
    """Try wrong passwords of known and unknown names, many at once, without a token."""
    names = (scene.HONEST, "root", "nobody-of-this-name", "somebody")
    while not hostile.stopping.is_set():
        requests = [
            users_pb2.LoginRequest(username=names[index % len(names)], password=f"guess-{index}")
            for index in range(LOGINS_AT_ONCE)
        ]
        await asyncio.gather(*(hostile.call(r, metadata=(), timeout_s=10) for r in requests))


async def ask_for_hashes(hostile: Hostile) -> None:
    """Send passwords to hash without the permission to create users."""
    request = users_pb2.CreateUserRequest(username="never-made", password="never-hashed")
    await _submit_again_and_again(hostile, [[request] * ALL])


async def leak_sessions(hostile: Hostile) -> None:
    """Register sessions and forget them."""
    while not hostile.stopping.is_set():
        await asyncio.gather(*(hostile.register() for _ in range(FIRES)))


async def lie_about_numbers(hostile: Hostile) -> None:
    """Send impossible request numbers, counts and spans."""
    while not hostile.stopping.is_set():
        session_id = await hostile.register()
        async with hostile.submit(session_id) as stream:
            for lie in fuzzing.LIES:
                await stream.send(lie)
                await stream.receive()


async def ask_for_snapshots(hostile: Hostile) -> None:
    """Call methods for administrators: snapshots, their deletion, a step-down."""
    requests: Sequence[Message] = (
        snapshots_pb2.CreateSnapshotRequest(),
        snapshots_pb2.DeleteSnapshotRequest(generation=1),
        snapshots_pb2.PruneSnapshotsRequest(),
        snapshots_pb2.ListSnapshotsRequest(),
        cluster_pb2.StepDownRequest(),
    )
    while not hostile.stopping.is_set():
        for request in requests:
            await hostile.call(request)


@dataclass(frozen=True, slots=True)
class AttackKind:
    """An attack, and the user of its callers."""

    username: str
    attack: Attack


KINDS: Final[dict[str, AttackKind]] = {
    "alternate partitions": AttackKind(scene.TOPIC_MANAGER, alternate_partitions),
    "cascade": AttackKind(scene.STREAMS_MANAGER, cascade),
    "heartbeats": AttackKind(scene.TOPIC_MANAGER, heartbeat),
    "refusals kept": AttackKind(scene.POWERLESS, collect_refusals),
    "transactions": AttackKind(scene.TOPIC_MANAGER, transact),
    "pages": AttackKind(scene.READER, read_pages),
    "reads abandoned": AttackKind(scene.READER, read_and_leave),
    "answers not read": AttackKind(scene.READER, read_slowly),
    "digests": AttackKind(scene.POWERLESS, walk_state),
    "logins": AttackKind(scene.NOBODY, flood_logins),
    "hashes": AttackKind(scene.POWERLESS, ask_for_hashes),
    "sessions leaked": AttackKind(scene.READER, leak_sessions),
    "numbers": AttackKind(scene.STREAMS_MANAGER, lie_about_numbers),
    "snapshots": AttackKind(scene.POWERLESS, ask_for_snapshots),
    "connections": AttackKind(scene.NOBODY, fuzzing.hold_connections),
    "fuzzed calls": AttackKind(scene.POWERLESS, fuzzing.fuzz_calls),
    "fuzzed messages": AttackKind(scene.POWERLESS, fuzzing.fuzz_messages),
    "fuzzed frames": AttackKind(scene.NOBODY, fuzzing.fuzz_frames),
}


async def _submit_again_and_again(hostile: Hostile, requests: Sequence[Sequence[Message]]) -> None:
    """Send the first requests once in a session, and the last one over and over."""
    *first, last = requests
    while not hostile.stopping.is_set():
        await _submit_once(hostile, [*first, *([last] * FIRES)])


async def _submit_once(hostile: Hostile, requests: Sequence[Sequence[Message]]) -> None:
    """Send requests one after another in a session of their own, and end it."""
    session_id = await hostile.register()
    if not session_id:
        await asyncio.sleep(PAUSE_S)
        return
    async with hostile.submit(session_id) as stream:
        for number, commands in enumerate(requests, 1):
            if hostile.stopping.is_set():
                return
            await stream.send_commands(number, number - 1, *_packed(commands))
            await stream.receive()


def _packed(commands: Sequence[Message]) -> Sequence[submit_pb2.Span]:
    """Return spans: a single one if all requests are equal, else one for each run of a method."""
    if all(command is commands[0] for command in commands):
        return [span(commands[0], len(commands))]
    if len({type(command) for command in commands}) > 1:
        return spans(commands)
    items = b"".join(frame(command.SerializeToString()) for command in commands)
    return [submit_pb2.Span(code=method_of(commands[0]).code, count=len(commands), items=items)]


def _alternating(count: int) -> list[Message]:
    """Return requests that add and remove a partition alternately."""
    adds = streams_pb2.CreatePartitionsRequest(
        stream=_WIDE_STREAM, topic=_WIDE_TOPIC, partitions_count=1
    )
    removes = streams_pb2.DeletePartitionsRequest(
        stream=_WIDE_STREAM, topic=_WIDE_TOPIC, partitions_count=1
    )
    return [removes if index % 2 else adds for index in range(count)]


def _join(group: str) -> Message:
    return groups_pb2.JoinConsumerGroupRequest(
        stream=_WIDE_STREAM, topic=_WIDE_TOPIC, group=identifier(group)
    )


def _part(request: Message) -> submit_pb2.TransactionPart:
    code = method_of(request).code
    return submit_pb2.TransactionPart(code=code, request=request.SerializeToString())
