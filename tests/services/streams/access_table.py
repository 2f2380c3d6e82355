"""Requests to streams, each with the grants that open it, and those that show what it is about."""

from __future__ import annotations

from typing import Final

from google.protobuf.message import Message

from tests.services.streams.brokers_workbench import registration
from tests.services.streams.streams_workbench import by
from viewstamp.api.brokers.v1 import brokers_service_pb2 as brokers_api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp, PartitionOffset
from viewstamp.api.streams.v1 import streams_service_pb2 as api
from viewstamp.api.users.v1 import users_pb2

STREAM: Final = "orders"
TOPIC: Final = "paid"
# A topic that a broker of root leads; and a broker that has nothing.
PLACED: Final = "placed"
SPARE: Final = "spare"
# The revision at which that broker registers; all is seen that comes before the user's grants.
BROKER_EPOCH: Final = 4
STAMP: Final = BrokerStamp(broker_id=1, broker_epoch=BROKER_EPOCH, seen_revision=BROKER_EPOCH + 2)

GLOBAL: Final = tuple(users_pb2.GlobalPermissions.DESCRIPTOR.fields_by_name)
SCOPED: Final = (
    "manage_stream",
    "read_stream",
    "manage_topics",
    "read_topics",
    "poll_messages",
    "send_messages",
)
TOPICAL: Final = ("manage_topic", "read_topic", "poll_messages", "send_messages")
GRANTS: Final = (
    *(f"g.{name}" for name in GLOBAL),
    *(f"s.{name}" for name in SCOPED),
    *(f"t.{name}" for name in TOPICAL),
    "none",
)

SEES_STREAM: Final = frozenset(
    "g.manage_streams g.read_streams g.manage_topics g.read_topics "
    "s.manage_stream s.read_stream s.manage_topics s.read_topics".split()
)
SEES_TOPIC: Final = SEES_STREAM | {"t.manage_topic", "t.read_topic"}
READS_STREAM: Final = frozenset(
    "g.manage_streams g.read_streams s.manage_stream s.read_stream".split()
)
MANAGES_STREAM: Final = frozenset({"g.manage_streams", "s.manage_stream"})
CREATES_TOPIC: Final = MANAGES_STREAM | {"g.manage_topics", "s.manage_topics"}
MANAGES_TOPIC: Final = CREATES_TOPIC | {"t.manage_topic"}
MANAGES_SERVERS: Final = frozenset({"g.manage_servers"})
DATA: Final = frozenset(f"{level}.{verb}_messages" for level in "gst" for verb in ("poll", "send"))

# Request, grants that open it, grants that show its entity, permission that its refusal names.
# Nothing shows where there is no entity to hide: then every refusal is PERMISSION_DENIED.
Row = tuple[Message, frozenset[str], frozenset[str], str, str]
ALL: Final = frozenset(GRANTS)
REQUESTS: Final[dict[str, Row]] = {
    "CreateStream": (
        api.CreateStreamRequest(name="new"),
        frozenset({"g.manage_streams"}),
        ALL,
        "manage_streams",
        "",
    ),
    "UpdateStream": (
        api.UpdateStreamRequest(stream=by(STREAM), name="new"),
        MANAGES_STREAM,
        SEES_STREAM,
        "manage_stream",
        "STREAM_NOT_FOUND",
    ),
    "DeleteStream": (
        api.DeleteStreamRequest(stream=by(STREAM)),
        MANAGES_STREAM,
        SEES_STREAM,
        "manage_stream",
        "STREAM_NOT_FOUND",
    ),
    "PurgeStream": (
        api.PurgeStreamRequest(stream=by(STREAM)),
        MANAGES_STREAM,
        SEES_STREAM,
        "manage_stream",
        "STREAM_NOT_FOUND",
    ),
    "CreateTopic": (
        api.CreateTopicRequest(stream=by(STREAM), name="new"),
        CREATES_TOPIC,
        SEES_STREAM,
        "manage_topics",
        "STREAM_NOT_FOUND",
    ),
    "UpdateTopic": (
        api.UpdateTopicRequest(stream=by(STREAM), topic=by(TOPIC), name="new"),
        MANAGES_TOPIC,
        SEES_TOPIC,
        "manage_topic",
        "STREAM_NOT_FOUND",
    ),
    "DeleteTopic": (
        api.DeleteTopicRequest(stream=by(STREAM), topic=by(TOPIC)),
        MANAGES_TOPIC,
        SEES_TOPIC,
        "manage_topic",
        "STREAM_NOT_FOUND",
    ),
    "PurgeTopic": (
        api.PurgeTopicRequest(stream=by(STREAM), topic=by(TOPIC)),
        MANAGES_TOPIC,
        SEES_TOPIC,
        "manage_topic",
        "STREAM_NOT_FOUND",
    ),
    "CreatePartitions": (
        api.CreatePartitionsRequest(stream=by(STREAM), topic=by(TOPIC), partitions_count=1),
        MANAGES_TOPIC,
        SEES_TOPIC,
        "manage_topic",
        "STREAM_NOT_FOUND",
    ),
    "DeletePartitions": (
        api.DeletePartitionsRequest(stream=by(STREAM), topic=by(TOPIC), partitions_count=1),
        MANAGES_TOPIC,
        SEES_TOPIC,
        "manage_topic",
        "STREAM_NOT_FOUND",
    ),
    "TruncatePartitions": (
        api.TruncatePartitionsRequest(
            stream=by(STREAM), topic=by(TOPIC), start_offsets=[PartitionOffset(offset=1)]
        ),
        MANAGES_TOPIC,
        SEES_TOPIC,
        "manage_topic",
        "STREAM_NOT_FOUND",
    ),
    "ReportPartitionEnds": (
        api.ReportPartitionEndsRequest(
            stream=by(STREAM), topic=by(TOPIC), end_offsets=[PartitionOffset(offset=1)]
        ),
        frozenset(),  # no single grant shows the topic and lets send
        SEES_TOPIC,
        "send_messages",
        "STREAM_NOT_FOUND",
    ),
    "GetStream": (
        api.GetStreamRequest(stream=by(STREAM)),
        READS_STREAM,
        SEES_STREAM,
        "read_stream",
        "STREAM_NOT_FOUND",
    ),
    "ListStreams": (
        api.ListStreamsRequest(),
        frozenset({"g.manage_streams", "g.read_streams"}),
        ALL,
        "read_streams",
        "",
    ),
    "GetTopic": (
        api.GetTopicRequest(stream=by(STREAM), topic=by(TOPIC)),
        SEES_TOPIC,
        SEES_TOPIC,
        "",
        "STREAM_NOT_FOUND",
    ),
    "ListTopics": (
        api.ListTopicsRequest(stream=by(STREAM)),
        SEES_STREAM,
        SEES_STREAM,
        "",
        "STREAM_NOT_FOUND",
    ),
    "ListPartitions": (
        api.ListPartitionsRequest(stream=by(STREAM), topic=by(TOPIC)),
        SEES_TOPIC,
        SEES_TOPIC,
        "",
        "STREAM_NOT_FOUND",
    ),
    "ListWatermarks": (
        api.ListWatermarksRequest(stream=by(STREAM), topic=by(TOPIC)),
        SEES_TOPIC,
        SEES_TOPIC,
        "",
        "STREAM_NOT_FOUND",
    ),
    "CheckAccess": (
        api.CheckAccessRequest(stream=by(STREAM), topic=by(TOPIC)),
        SEES_TOPIC | DATA,
        SEES_TOPIC | DATA,
        "",
        "STREAM_NOT_FOUND",
    ),
    # Of brokers that are another user's.
    "RegisterBroker": (registration("one"), MANAGES_SERVERS, ALL, "manage_servers", ""),
    "ResignBroker": (
        brokers_api.ResignBrokerRequest(broker=STAMP),
        MANAGES_SERVERS,
        ALL,
        "manage_servers",
        "",
    ),
    "UpdateBroker": (
        brokers_api.UpdateBrokerRequest(broker=by(SPARE), draining=True),
        MANAGES_SERVERS,
        ALL,
        "manage_servers",
        "",
    ),
    "UnregisterBroker": (
        brokers_api.UnregisterBrokerRequest(broker=by(SPARE)),
        MANAGES_SERVERS,
        ALL,
        "manage_servers",
        "",
    ),
    "KeepAliveBroker": (
        brokers_api.KeepAliveBrokerRequest(broker=STAMP),
        MANAGES_SERVERS,
        ALL,
        "manage_servers",
        "",
    ),
    "PlacePartitions": (
        brokers_api.PlacePartitionsRequest(
            stream=by(STREAM),
            topic=by(TOPIC),
            assignments=[brokers_api.PartitionAssignment(replicas=[1])],
        ),
        MANAGES_TOPIC,
        SEES_TOPIC,
        "manage_topic",
        "STREAM_NOT_FOUND",
    ),
    "UpdateInSync": (
        brokers_api.UpdateInSyncRequest(
            stream=by(STREAM),
            topic=by(PLACED),
            broker=STAMP,
            partitions=[brokers_api.InSyncReplicas(in_sync=[1])],
        ),
        # The broker comes before the topic, which nothing in the table shows to such a user.
        frozenset(),
        ALL - MANAGES_SERVERS,
        "manage_servers",
        "STREAM_NOT_FOUND",
    ),
    "GetBroker": (brokers_api.GetBrokerRequest(broker=by(SPARE)), ALL, ALL, "", ""),
    "ListBrokers": (brokers_api.ListBrokersRequest(), ALL, ALL, "", ""),
    "ListPlacements": (
        brokers_api.ListPlacementsRequest(stream=by(STREAM), topic=by(TOPIC)),
        SEES_TOPIC,
        SEES_TOPIC,
        "",
        "STREAM_NOT_FOUND",
    ),
}
