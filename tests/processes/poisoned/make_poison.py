"""Log a request that alternates partitions: see the README beside this file.

Usage: make_poison.py ADDRESS ROOT_PASSWORD_FILE
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc

from tests.processes.callers import Caller, named
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as groups
from viewstamp.api.streams.v1 import streams_service_pb2 as streams
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.api.submit.v1.submit_service_pb2_grpc import SubmitServiceStub
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users
from viewstamp.framing import frame
from viewstamp.limits import REQUEST_COMMANDS_MAX
from viewstamp.routing import methods_of_file

PARTITIONS = 1_000
GROUPS = 20
PATIENCE_S = 60


def main(address: str, password_file: str) -> None:
    """Prepare a topic with groups, and send the request."""
    tag = secrets.token_hex(3)
    with grpc.insecure_channel(address) as channel:
        root = Caller(channel).logged_in("root", Path(password_file).read_text().strip())
        root.create_stream(f"s{tag}")
        root.create_topic(f"s{tag}", "t", partitions=PARTITIONS)
        user = _manager_of(root, tag).with_session()
        where: dict[str, Any] = {"stream": named(f"s{tag}"), "topic": named("t")}
        for number in range(GROUPS):
            group = f"g{number}"
            made = groups.CreateConsumerGroupRequest(name=group, **where)
            user.call(user.groups.CreateConsumerGroup, made)
            joined = groups.JoinConsumerGroupRequest(group=named(group), **where)
            user.once(user.groups.JoinConsumerGroup, joined)
        _submit(channel, user, where)


def _manager_of(root: Caller, tag: str) -> Caller:
    """Return a new user who may manage the one topic."""
    topic = users_pb2.TopicPermissions(topic=named("t"), manage_topic=True)
    stream = users_pb2.StreamPermissions(stream=named(f"s{tag}"), topics=[topic])
    permissions = users_pb2.Permissions(streams=[stream])
    request = users.CreateUserRequest(
        username=f"u{tag}", password="secret", permissions=permissions
    )
    root.call(root.users.CreateUser, request)
    return root.logged_in(f"u{tag}", "secret")


def _submit(channel: grpc.Channel, user: Caller, where: dict[str, Any]) -> None:
    codes = {method.name: method.code for method in methods_of_file(streams.DESCRIPTOR)}
    fewer = streams.DeletePartitionsRequest(partitions_count=1, **where).SerializeToString()
    more = streams.CreatePartitionsRequest(partitions_count=1, **where).SerializeToString()
    spans = [
        submit.Span(code=codes[name], count=1, items=frame(request))
        for _ in range(REQUEST_COMMANDS_MAX // 2)
        for name, request in (("DeletePartitions", fewer), ("CreatePartitions", more))
    ]
    acked = GROUPS
    command = submit.CommandRequest(number=acked + 1, acked=acked, spans=spans)

    def requests() -> Iterator[submit.SubmitRequest]:
        yield submit.SubmitRequest(open=submit.OpenStream(session_id=user.session))
        yield submit.SubmitRequest(command=command)

    answers = SubmitServiceStub(channel).Submit(
        requests(), metadata=user.metadata(), timeout=PATIENCE_S
    )
    for answer in answers:
        print(answer.WhichOneof("kind"))


if __name__ == "__main__":
    main(*sys.argv[1:])
