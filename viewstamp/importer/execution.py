"""Executes a plan: creates what is missing, and counts what exists already."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final

from google.protobuf.message import Message

from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.client import Client, Refusal
from viewstamp.client.identifiers import identifier
from viewstamp.importer.existing import read_existing
from viewstamp.importer.plan import GroupKey, ImportPlan, TopicKey
from viewstamp.importer.report import Counts, Report
from viewstamp.importer.users import import_user
from viewstamp.topology.passwords import PasswordFile

STREAMS: Final = "streams"
TOPICS: Final = "topics"
GROUPS: Final = "consumer groups"
USERS: Final = "users"

# Small enough that a progress bar moves, large enough that the round trip does not matter.
COMMANDS_PER_REQUEST: Final = 64
PARTITIONS_PER_TOPIC: Final = 1
# Somebody else created it between our read and our command.
EXISTS: Final = frozenset(
    {Reason.REASON_STREAM_EXISTS, Reason.REASON_TOPIC_EXISTS, Reason.REASON_GROUP_EXISTS}
)

# Called with the kind of the finished things, and their number.
Progress = Callable[[str, int], None]


async def import_plan(
    client: Client,
    plan: ImportPlan,
    passwords: PasswordFile,
    *,
    dry_run: bool = False,
    progress: Progress = lambda kind, count: None,
) -> Report:
    """Create what the cluster lacks of the plan, and return the outcome of each item.

    A refused item is counted as failed and the import goes on. With `dry_run` nothing is changed,
    on the cluster or in the file. Raises Refusal or ClientError if a request as a whole failed,
    PasswordFileError before a user is created whose password cannot be kept.
    """
    report = Report(plan, dry_run, {})
    existing = await read_existing(client, plan)
    steps: tuple[tuple[str, Mapping[Any, Message], Collection[Any]], ...] = (
        (STREAMS, {name: _create_stream(name) for name in plan.streams}, existing.streams),
        (TOPICS, {key: _create_topic(key) for key in plan.topics}, existing.topics),
        (GROUPS, {key: _create_group(key) for key in plan.groups}, existing.groups),
    )
    for kind, requests, present in steps:
        missing = [request for key, request in requests.items() if key not in present]
        counts = Counts(planned=len(requests), existing=len(requests) - len(missing))
        report.kinds[kind] = counts
        progress(kind, counts.existing)
        await _create(client, missing, counts, dry_run, partial(progress, kind))
    if not dry_run:
        existing = await read_existing(client, plan)
    report.kinds[USERS] = users = Counts(planned=len(plan.senders))
    for username in plan.senders:
        await import_user(client, plan, username, existing, passwords, users, dry_run=dry_run)
        progress(USERS, 1)
    return report


def planned_counts(plan: ImportPlan) -> dict[str, int]:
    """Return how many things of each kind the plan has, in the order of their creation."""
    return {
        STREAMS: len(plan.streams),
        TOPICS: len(plan.topics),
        GROUPS: len(plan.groups),
        USERS: len(plan.senders),
    }


async def _create(
    client: Client,
    requests: Sequence[Message],
    counts: Counts,
    dry_run: bool,
    progress: Callable[[int], None],
) -> None:
    rest = iter(requests)
    while batch := list(islice(rest, COMMANDS_PER_REQUEST)):
        results = batch if dry_run else await client.batch(batch)
        for request, result in zip(batch, results, strict=True):
            _count(request, result, counts)
        progress(len(batch))


def _count(request: Any, result: Message | Refusal, counts: Counts) -> None:
    if not isinstance(result, Refusal):
        counts.created += 1
    elif result.reason in EXISTS:
        counts.existing += 1
    else:
        counts.failures.append(f"{request.name}: {result.name}: {result.message}")


def _create_stream(name: str) -> Message:
    return streams_pb2.CreateStreamRequest(name=name)


def _create_topic(key: TopicKey) -> Message:
    return streams_pb2.CreateTopicRequest(
        stream=identifier(key.stream), name=key.topic, partitions_count=PARTITIONS_PER_TOPIC
    )


def _create_group(key: GroupKey) -> Message:
    return groups_pb2.CreateConsumerGroupRequest(
        stream=identifier(key.stream), topic=identifier(key.topic), name=key.group
    )
