"""The groups of many topics in one list, over real gRPC."""

from __future__ import annotations

import pytest

from tests.processes.processes import ReplicaProcesses, unique
from viewstamp import Refusal, connect_blocking
from viewstamp.api.users.v1 import users_pb2


def test_groups_of_all_topics_are_listed(shared: ReplicaProcesses) -> None:
    """Of a stream by its name, or of all; who may list a stream's topics lists their groups."""
    own, other = unique("groups"), unique("groups")
    reader = unique("reader")
    with connect_blocking(shared.address, username="root", password=shared.root_password()) as root:
        expected = []
        for stream in (own, other):
            root.streams.create(stream)
            for topic in "ab":
                root.topics.create(stream, topic)
                root.groups.create(stream, topic, "readers")
                expected.append((stream, topic))
        assert _places(root.groups.list_all(own, page_size=1)) == [1, 2]
        everything = [(each.stream_id, each.topic_id) for each in root.groups.list_all()]
        assert everything == sorted(everything) and len(everything) >= len(expected)
        granted = users_pb2.StreamPermissions(read_topics=True)
        granted.stream.name = own
        permissions = users_pb2.Permissions(streams=[granted])
        root.users.create(reader, "secret", permissions=permissions)
    with connect_blocking(shared.address, username=reader, password="secret") as client:
        assert len(list(client.groups.list_all(own))) == 2
        for named, why in ((other, "STREAM_NOT_FOUND"), (None, "PERMISSION_DENIED")):
            with pytest.raises(Refusal) as caught:
                list(client.groups.list_all(named))
            assert caught.value.name == why


def _places(groups: object) -> list[int]:
    """Return where the topics of groups stand among each other."""
    topics = [group.topic_id for group in groups]  # type: ignore[attr-defined]
    return [sorted(topics).index(topic) + 1 for topic in topics]
