"""What most histories begin with: a bit of everything, spelled well, so that more can happen."""

from __future__ import annotations

from typing import Any, Final

from testkit.composite.broker_fillers import BROKER_NAMES
from testkit.composite.commands import GROUP_NAMES, NAMES, SECOND_US, USER_NAMES, CommandWriter
from testkit.composite.logged_parts import encoded_request, logged_request, logged_span
from testkit.composite.model import CODES, NONCE_BYTES
from viewstamp.api.log.v1 import log_pb2

Prepare = tuple[int, list[log_pb2.LoggedRequest]]

PARTITIONS: Final = 5
IN_A: Final = {"stream": {"name": "a"}, "topic": {"name": "a"}}
IN_B: Final = {"stream": {"name": "b"}, "topic": {"name": "a"}}
_ALL_OF_STREAMS: Final = {"global": {"manage_streams": True}}


def furnishing(writer: CommandWriter) -> Prepare:
    """Return a prepare in which root creates a bit of everything."""
    nonces = [{"nonce": bytes([nonce]) * NONCE_BYTES} for nonce in range(3)]
    users = [{"username": name, "password_hash": name} for name in USER_NAMES]
    groups = [{**place, "name": name} for place in (IN_A, IN_B) for name in GROUP_NAMES]
    # The offsets of the second topic take one row, or more.
    counts = (PARTITIONS, writer.pick((PARTITIONS, 130)), PARTITIONS)
    # How many replicas they have if brokers are there by now; as many as can be had.
    options = {"replication_factor": writer.pick((1, 2, len(writer.model.world.brokers) or 3))}
    contents: list[tuple[str, list[dict[str, Any]]]] = [
        ("CreateUser", [{**user, "permissions": _ALL_OF_STREAMS} for user in users]),
        ("CreateStream", [{"name": name} for name in NAMES]),
        ("CreateTopic", [{"stream": {"name": name}, "name": "a", "partitions_count": count,
                          "options": options} for name, count in zip(NAMES, counts, strict=True)]),
        # Those of b have no members until somebody happens to join.
        ("CreateConsumerGroup", groups),
        ("RegisterSession", nonces),
    ]  # fmt: skip
    spans = [_of_root(name, items) for name, items in contents]
    for user_id in range(1, 4):
        items = [encoded_request("RegisterSession", fields) for fields in nonces[:2]]
        stamp = writer.model.revision + 3
        spans.append(logged_span(CODES["RegisterSession"], items, user_id, stamp))
    writer.timestamp += SECOND_US
    return writer.timestamp, [logged_request(0, 0, 0, spans)]


def registering(writer: CommandWriter) -> Prepare:
    """Return a prepare in which brokers register, some of them for users who are there."""
    items = [
        {
            "name": name,
            "rack": writer.pick(("r", "r", "s")),
            "storage_id": "disk",
            "endpoints": [{"listener": "internal", "host": name, "port": 1}],
            "user_id": writer.pick(list(writer.model.world.users)),
        }
        for name in BROKER_NAMES[: writer.pick((2, 3, 4))]
    ]
    writer.timestamp += 1
    return writer.timestamp, [logged_request(0, 0, 0, [_of_root("RegisterBroker", items)])]


def joining(writer: CommandWriter, half: int) -> Prepare:
    """Return a prepare in which users get grants of topics, and half the sessions join groups.

    `half` is 0 or 1.
    """
    world = writer.model.world
    grants = [_grants_of_topics(writer, user_id) for user_id in range(1, len(USER_NAMES) + 1)]
    requests = [logged_request(0, 0, 0, [_of_root("UpdatePermissions", grants)])]
    name = "JoinConsumerGroup"
    for session in list(world.sessions.values())[half::2]:
        whom = {
            "group": {"name": writer.pick(GROUP_NAMES)},
            "instance_id": writer.pick(("", *"ijklmn")),
        }
        item = encoded_request(name, {**IN_A, **whom})
        stamp = world.users[session.user_id].credential
        span = logged_span(CODES[name], [item], session.user_id, stamp)
        requests.append(logged_request(session.id, 1, 0, [span]))
    writer.timestamp += 1
    return writer.timestamp, requests


def reporting(writer: CommandWriter) -> Prepare:
    """Return a prepare in which brokers report where the data of most partitions lies."""
    ends = [{**place, "end_offsets": _offsets(writer, 4)} for place in (IN_A, IN_B)]
    starts = [{**place, "start_offsets": _offsets(writer, 0)} for place in (IN_A, IN_B)]
    spans = [_of_root("ReportPartitionEnds", ends), _of_root("TruncatePartitions", starts)]
    writer.timestamp += 1
    return writer.timestamp, [logged_request(0, 0, 0, spans)]


def _grants_of_topics(writer: CommandWriter, user_id: int) -> dict[str, Any]:
    """Return fields that give a user grants of each topic, and perhaps of all streams."""
    topics = [{"topic": {"name": "a"}, "read_topic": True}]
    streams: list[dict[str, Any]] = [
        {
            "stream": {"name": name},
            "topics": topics,
            "poll_messages": not writer.chance(3),
            "send_messages": writer.chance(2),
        }
        for name in NAMES
    ]
    permissions = {**({} if writer.chance(2) else _ALL_OF_STREAMS), "streams": streams}
    return {"user": {"id": user_id}, "permissions": permissions}


def _offsets(writer: CommandWriter, lowest: int) -> list[dict[str, int]]:
    """Return offsets of some partitions, one at least."""
    partitions = [each for each in range(PARTITIONS) if not writer.chance(4)] or [0]
    return [{"partition": each, "offset": lowest + writer.pick(range(4))} for each in partitions]


def _of_root(name: str, items: list[dict[str, Any]]) -> log_pb2.LoggedSpan:
    return logged_span(CODES[name], [encoded_request(name, fields) for fields in items], 0, 1)
