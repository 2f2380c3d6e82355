"""Log a request that an earlier build could not execute: see the README beside this file.

Usage: make_poison.py partitions|heartbeats ADDRESS ROOT_PASSWORD_FILE
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from tests.processes.callers import Caller, SubmitStream, named, span
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.limits import PARTITIONS_PER_REQUEST_MAX, REQUEST_COMMANDS_MAX
from viewstamp.routing import methods_of_file

# By kind: partitions of the topic, and number of groups, each with one member.
TOPICS: Final = {"partitions": (1_000, 20), "heartbeats": (5_000, 1)}
CODES: Final = {
    method.name: method.code
    for file in (groups.DESCRIPTOR, streams.DESCRIPTOR)
    for method in methods_of_file(file)
}
ASSIGNED_S: Final = 2


def main(kind: str, address: str, password_file: str) -> None:
    """Prepare a topic with groups, and send the request, which the earlier build never answers."""
    tag = secrets.token_hex(3)
    with grpc.insecure_channel(address) as channel:
        root = Caller(channel).logged_in("root", Path(password_file).read_text().strip())
        user = _manager_of(root, tag).with_session()
        where = _topic(root, tag, TOPICS[kind][0])
        for number in range(TOPICS[kind][1]):
            _join(user, where, f"g{number}")
        time.sleep(ASSIGNED_S)
        spans = changes(where) if kind == "partitions" else heartbeats(user, where)
        try:
            print(SubmitStream(user).ask(TOPICS[kind][1] + 1, *spans, acked=TOPICS[kind][1]))
        except grpc.RpcError as error:
            print(f"no answer: {error.code().name}")


def changes(where: dict[str, Any]) -> Sequence[submit.Span]:
    """Return a request full of DeletePartitions and CreatePartitions, of one partition each."""
    fewer = streams.DeletePartitionsRequest(partitions_count=1, **where)
    more = streams.CreatePartitionsRequest(partitions_count=1, **where)
    pair = (span(CODES["DeletePartitions"], fewer), span(CODES["CreatePartitions"], more))
    return pair * (REQUEST_COMMANDS_MAX // 2)


def heartbeats(user: Caller, where: dict[str, Any]) -> Sequence[submit.Span]:
    """Return a request full of heartbeats of the first group's member, at its current epoch."""
    group = named("g0")
    found = user.call(
        user.groups.GetConsumerGroup, groups.GetConsumerGroupRequest(group=group, **where)
    )
    beat = groups.HeartbeatConsumerGroupRequest(
        group=group, member_epoch=found.group.members[0].member_epoch, **where
    )
    return [span(CODES["HeartbeatConsumerGroup"], *[beat] * REQUEST_COMMANDS_MAX)]


def _manager_of(root: Caller, tag: str) -> Caller:
    """Return a new user who may manage one new topic and nothing else."""
    root.create_stream(f"s{tag}")
    root.create_topic(f"s{tag}", "t")
    topic = users_pb2.TopicPermissions(topic=named("t"), manage_topic=True)
    stream = users_pb2.StreamPermissions(stream=named(f"s{tag}"), topics=[topic])
    permissions = users_pb2.Permissions(streams=[stream])
    request = users.CreateUserRequest(
        username=f"u{tag}", password="secret", permissions=permissions
    )
    root.call(root.users.CreateUser, request)
    return root.logged_in(f"u{tag}", "secret")


def _topic(root: Caller, tag: str, partitions_count: int) -> dict[str, Any]:
    """Add partitions to the topic up to a count, and return how requests name it."""
    where: dict[str, Any] = {"stream": named(f"s{tag}"), "topic": named("t")}
    left = partitions_count - 1
    while left:
        count = min(left, PARTITIONS_PER_REQUEST_MAX)
        request = streams.CreatePartitionsRequest(partitions_count=count, **where)
        root.call(root.streams.CreatePartitions, request)
        left -= count
    return where


def _join(user: Caller, where: dict[str, Any], name: str) -> None:
    """Create a group and join it with the session's next request."""
    user.call(
        user.groups.CreateConsumerGroup, groups.CreateConsumerGroupRequest(name=name, **where)
    )
    user.once(
        user.groups.JoinConsumerGroup, groups.JoinConsumerGroupRequest(group=named(name), **where)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
