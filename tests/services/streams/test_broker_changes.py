"""What watchers are told of brokers and placements: the changes of each command."""

from __future__ import annotations

from typing import Any, Final

import pytest

from services.streams import broker_commands, placement_commands
from tests.services.streams.brokers_workbench import placing, registration, telling
from tests.services.streams.streams_workbench import Workbench, by, orders_bench, topic_request
from tests.services.streams.test_streams_changes import (
    STREAM,
    TOPIC,
    Told,
    new_changes,
    stream_request,
    tell,
)
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as brokers_api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp
from viewstamp.api.streams.v1 import streams_service_pb2 as api

BROKER: Final = "viewstamp.api.brokers.v1.Broker"
PLACEMENTS: Final = "viewstamp.api.brokers.v1.Placements"
BROKER_EPOCH: Final = 6
STAMP: Final = BrokerStamp(broker_id=1, broker_epoch=BROKER_EPOCH, seen_revision=BROKER_EPOCH + 2)


def bench_with_brokers() -> Workbench:
    """Return streams 1 (topics 1 to 3) and 2; topic 3 is placed on broker 1, 2 has nothing."""
    bench = orders_bench()
    assert bench.command("RegisterBroker", registration("one")).broker_epoch == BROKER_EPOCH
    bench.create_topic("orders", "placed", 130)
    bench.command("RegisterBroker", registration("two"))
    return bench


# With brokers, and a topic of two rows of partitions that one of them has.
BROKER_ROWS: Final[dict[str, tuple[str, Any, list[Told]]]] = {
    "RegisterBroker": ("RegisterBroker", registration("new"), [("created", BROKER, 0, 0, 0)]),
    "RegisterBroker again": (
        "RegisterBroker",
        registration("one"),
        [("updated", BROKER, 0, 0, 0)],
    ),
    "ResignBroker": (
        "ResignBroker",
        brokers_api.ResignBrokerRequest(broker=STAMP),
        [("updated", BROKER, 0, 0, 0)],
    ),
    "ResignBroker that is only validated": (
        "ResignBroker",
        brokers_api.ResignBrokerRequest(broker=STAMP, validate_only=True),
        [],
    ),
    "UpdateBroker": (
        "UpdateBroker",
        brokers_api.UpdateBrokerRequest(broker=by("one"), draining=True),
        [("updated", BROKER, 0, 0, 0)],
    ),
    "UpdateBroker to the same": (
        "UpdateBroker",
        brokers_api.UpdateBrokerRequest(broker=by("one"), draining=False),
        [],
    ),
    "UnregisterBroker": (
        "UnregisterBroker",
        brokers_api.UnregisterBrokerRequest(broker=by("two")),
        [("deleted", BROKER, 0, 0, 0)],
    ),
    "FenceBroker": (
        "FenceBroker",
        brokers_api.FenceBrokerRequest(broker_id=1, broker_epoch=BROKER_EPOCH),
        [("updated", BROKER, 0, 0, 0)],
    ),
    "FenceBroker of an epoch before": (
        "FenceBroker",
        brokers_api.FenceBrokerRequest(broker_id=1, broker_epoch=BROKER_EPOCH - 1),
        [],
    ),
    "PlacePartitions": (
        "PlacePartitions",
        placing("paid", {0: [1, 2], 2: []}),
        [("created", PLACEMENTS, 1, 1, 0)],
    ),
    "PlacePartitions of two rows": (
        "PlacePartitions",
        placing("placed", {129: [1, 2], 0: [1, 2]}),
        [("updated", PLACEMENTS, 1, 3, 0)] * 2,
    ),
    "PlacePartitions as they are": ("PlacePartitions", placing("placed", {0: [1], 1: []}), []),
    "UpdateInSync to the same": ("UpdateInSync", telling("placed", STAMP, {0: [1]}), []),
    "CreateTopic": (
        "CreateTopic",
        stream_request(api.CreateTopicRequest, name="new", partitions_count=2),
        [("created", TOPIC, 1, 4, 0), ("created", PLACEMENTS, 1, 4, 0)],
    ),
    "CreatePartitions": (
        "CreatePartitions",
        topic_request(api.CreatePartitionsRequest, "placed", partitions_count=1),
        [("updated", PLACEMENTS, 1, 3, 0), ("updated", TOPIC, 1, 3, 0)],
    ),
    "DeletePartitions": (
        "DeletePartitions",
        topic_request(api.DeletePartitionsRequest, "placed", partitions_count=5),
        [
            ("updated", PLACEMENTS, 1, 3, 0),
            ("deleted", PLACEMENTS, 1, 3, 0),
            ("updated", TOPIC, 1, 3, 0),
        ],
    ),
    "DeleteTopic": (
        "DeleteTopic",
        topic_request(api.DeleteTopicRequest, "placed"),
        [*[("deleted", PLACEMENTS, 1, 3, 0)] * 2, ("deleted", TOPIC, 1, 3, 0)],
    ),
    "DeleteStream": (
        "DeleteStream",
        stream_request(api.DeleteStreamRequest),
        [
            ("deleted", TOPIC, 1, 1, 0),
            ("deleted", TOPIC, 1, 2, 0),
            *[("deleted", PLACEMENTS, 1, 3, 0)] * 2,
            ("deleted", TOPIC, 1, 3, 0),
            ("deleted", STREAM, 1, 0, 0),
        ],
    ),
}


def test_every_command_about_brokers_has_a_row() -> None:
    """The table has a row for whatever changes brokers and placements."""
    commands = broker_commands.COMMANDS.keys() | placement_commands.COMMANDS.keys()
    assert commands <= {name for name, _, _ in BROKER_ROWS.values()}


@pytest.mark.parametrize("name", BROKER_ROWS)
def test_a_command_makes_these_changes_of_brokers_and_placements(name: str) -> None:
    """A broker is one change whatever it leads; placements are told by rows of partitions."""
    command, request, expected = BROKER_ROWS[name]
    bench = bench_with_brokers()
    assert [
        tell(c) for c in new_changes(bench, lambda: bench.command(command, request))
    ] == expected


def test_what_a_leader_says_is_told_with_its_row() -> None:
    """UpdateInSync tells all placements of the row, without leaders, at its revision."""
    bench = bench_with_brokers()
    bench.command("PlacePartitions", placing("placed", {1: [1, 2]}))
    seen = BrokerStamp(broker_id=1, broker_epoch=BROKER_EPOCH, seen_revision=bench.revision)
    told = telling("placed", seen, {1: [1, 2]})
    (change,) = new_changes(bench, lambda: bench.command("UpdateInSync", told))
    assert tell(change) == ("updated", PLACEMENTS, 1, 3, 0)
    placements = brokers_pb2.Placements.FromString(change.entity).placements
    assert [each.partition for each in placements] == list(range(128))
    assert placements[1] == brokers_pb2.Placement(
        partition=1, replicas=[1, 2], in_sync=[1, 2], revision=bench.revision
    )
    assert change.key == (3).to_bytes(8, "big") + (0).to_bytes(8, "big")


def test_a_broker_is_described_as_callers_see_it() -> None:
    """The entity is the message that GetBroker answers, without the count of replicas."""
    bench = bench_with_brokers()
    drain = brokers_api.UpdateBrokerRequest(broker=by(1), draining=True)
    (change,) = new_changes(bench, lambda: bench.command("UpdateBroker", drain))
    seen = bench.query("GetBroker", brokers_api.GetBrokerRequest(broker=by(1))).broker
    assert seen.replicas_count == 130
    seen.ClearField("replicas_count")
    assert brokers_pb2.Broker.FromString(change.entity) == seen
    assert change.key == (1).to_bytes(8, "big")
