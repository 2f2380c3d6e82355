"""State before the attacks: entities of the largest size, and users with all kinds of rights."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.client import Client
from viewstamp.client.identifiers import identifier
from viewstamp.limits import TOPICS_PER_STREAM_MAX

PASSWORD: Final = "an abuser's password"
HONEST: Final = "honest"
POWERLESS: Final = "powerless"
TOPIC_MANAGER: Final = "topic-manager"
STREAMS_MANAGER: Final = "streams-manager"
READER: Final = "reader"
NOBODY: Final = ""

STREAM: Final = "abused"
WIDE_TOPIC: Final = "wide"
WIDE_PARTITIONS: Final = 1_000
WIDE_GROUPS: Final = 20
FULL_STREAM: Final = "full"
TOKENS: Final = 50


def _permissions() -> Mapping[str, users_pb2.Permissions | None]:
    everything = users_pb2.Permissions()
    getattr(everything, "global").manage_streams = True
    reads = users_pb2.Permissions()
    getattr(reads, "global").read_streams = True
    topic = users_pb2.TopicPermissions(topic=identifier(WIDE_TOPIC), manage_topic=True)
    one_topic = users_pb2.Permissions(
        streams=[users_pb2.StreamPermissions(stream=identifier(STREAM), topics=[topic])]
    )
    return MappingProxyType(
        {
            HONEST: everything,
            POWERLESS: None,
            TOPIC_MANAGER: one_topic,
            STREAMS_MANAGER: everything,
            READER: reads,
        }
    )


async def prepare(admin: Client, *, topics: int = TOPICS_PER_STREAM_MAX) -> None:
    """Make users, streams, topics and groups; `topics` fill one stream."""
    await admin.streams.create(STREAM)
    await admin.topics.create(STREAM, WIDE_TOPIC, partitions_count=WIDE_PARTITIONS)
    for number in range(WIDE_GROUPS):
        await admin.groups.create(STREAM, WIDE_TOPIC, f"group-{number}")
    await admin.streams.create(FULL_STREAM)
    await admin.batch(
        [
            streams_pb2.CreateTopicRequest(
                stream=identifier(FULL_STREAM), name=f"topic-{number}", partitions_count=1
            )
            for number in range(topics)
        ]
    )
    for username, permissions in _permissions().items():
        await admin.users.create(username, PASSWORD, permissions=permissions)
