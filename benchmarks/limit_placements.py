"""The most expensive requests about brokers, and about partitions that brokers have.

As many brokers are registered as may be, each in a rack of its own, under names of the greatest
length. One topic has a million partitions; another has as many as one command may report, with as
many replicas as there may be, no two alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from benchmarks.limit_cases import Case, by, fixed, long_name
from benchmarks.limit_drivers import Driver
from services.streams.domain import DOMAIN as STREAMS
from viewstamp import limits
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as brokers_api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp, Identifier, PartitionOffset
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api

STREAM: Final = "stream"
LED: Final = "led"  # a topic that the first broker leads
WIDE: Final = "wide"
LED_PARTITIONS: Final = limits.OFFSETS_PER_REQUEST_MAX
# With more, so many partitions cannot be deleted by one command.
WIDE_FACTOR: Final = 3
LEADER: Final = 1
SPARE: Final = limits.BROKERS_MAX  # has no replica
STORAGE_ID: Final = "s" * limits.BROKER_STORAGE_ID_BYTES_MAX
# As many of such brokers as one answer holds: 8 endpoints with two long names each.
BROKERS_ON_A_PAGE: Final = limits.MESSAGE_BYTES_MAX // 5_000
PER_REQUEST: Final = limits.PARTITIONS_PER_REQUEST_MAX


def placement_cases() -> dict[str, Case]:
    """Return the case of each method of brokers, and of others that placements make costlier."""
    driver = _placed()
    stamp = BrokerStamp(
        broker_id=LEADER,
        broker_epoch=driver.machine.state.brokers.rows[LEADER].broker_epoch,
        seen_revision=driver.revision,
    )
    return {**_of_brokers(driver, stamp), **_of_topics(driver, stamp)}


def _of_brokers(driver: Driver, stamp: BrokerStamp) -> dict[str, Case]:
    first, spare = Identifier(id=LEADER), Identifier(id=SPARE)
    epoch = driver.machine.state.brokers.rows[SPARE].broker_epoch
    silent = brokers_api.FenceBrokerRequest(broker_id=SPARE, broker_epoch=epoch)
    return {
        "RegisterBroker": Case(driver, lambda number: _registration(number % limits.BROKERS_MAX)),
        "ResignBroker": fixed(driver, brokers_api.ResignBrokerRequest(broker=stamp)),
        "UpdateBroker": fixed(driver, brokers_api.UpdateBrokerRequest(broker=first, draining=True)),
        "UnregisterBroker": fixed(driver, brokers_api.UnregisterBrokerRequest(broker=spare)),
        "GetBroker": fixed(driver, brokers_api.GetBrokerRequest(broker=first)),
        "ListBrokers": fixed(driver, brokers_api.ListBrokersRequest(page_size=BROKERS_ON_A_PAGE)),
        "KeepAliveBroker": fixed(driver, brokers_api.KeepAliveBrokerRequest(broker=stamp)),
        # It is carried out, so it is not about a broker that others of these requests name.
        "FenceBroker": fixed(driver, silent, user=limits.SYSTEM_USER_ID),
    }


def _of_topics(driver: Driver, stamp: BrokerStamp) -> dict[str, Case]:
    led: dict[str, Any] = {"stream": by(STREAM), "topic": by(LED)}
    wide: dict[str, Any] = {"stream": by(STREAM), "topic": by(WIDE)}
    told = [
        brokers_api.InSyncReplicas(partition=number, in_sync=[LEADER])
        for number in range(PER_REQUEST)
    ]
    offsets = [PartitionOffset(partition=number, offset=1) for number in range(LED_PARTITIONS)]
    return {
        "PlacePartitions": fixed(driver, _placing(range(PER_REQUEST), shift=1)),
        "UpdateInSync": fixed(
            driver, brokers_api.UpdateInSyncRequest(**led, broker=stamp, partitions=told)
        ),
        "ListPlacements": fixed(
            driver, brokers_api.ListPlacementsRequest(**led, page_size=limits.PAGE_SIZE_MAX)
        ),
        "ReportPartitionEnds": fixed(
            driver,
            streams_api.ReportPartitionEndsRequest(**led, broker=stamp, end_offsets=offsets),
        ),
        "TruncatePartitions": fixed(
            driver,
            streams_api.TruncatePartitionsRequest(**led, broker=stamp, start_offsets=offsets),
        ),
        "CreateTopic": Case(
            driver,
            lambda number: _topic(
                long_name(number), PER_REQUEST, limits.REPLICAS_PER_PARTITION_MAX
            ),
        ),
        "DeleteTopic": fixed(driver, streams_api.DeleteTopicRequest(**wide)),
    }


def _placed() -> Driver:
    """Return a machine with both topics and all brokers."""
    driver = Driver(STREAMS, streams_api.DESCRIPTOR, brokers_api.DESCRIPTOR)
    driver.effect(grants_changed=effects_pb2.GrantsChanged(user_id=limits.ROOT_USER_ID))
    driver.do(streams_api.CreateStreamRequest(name=STREAM))
    driver.do(_topic(LED, 0, 1))
    _extend(driver, LED, LED_PARTITIONS)
    for number in range(limits.BROKERS_MAX):
        driver.do(_registration(number))
    for first in range(0, LED_PARTITIONS, PER_REQUEST):
        driver.do(_placing(range(first, min(first + PER_REQUEST, LED_PARTITIONS))))
    driver.do(brokers_api.UpdateBrokerRequest(broker=Identifier(id=SPARE), draining=True))
    driver.do(_topic(WIDE, 0, WIDE_FACTOR))
    _extend(driver, WIDE, limits.PARTITIONS_PER_TOPIC_MAX)
    return driver


def _extend(driver: Driver, topic: str, partitions_count: int) -> None:
    for first in range(0, partitions_count, PER_REQUEST):
        count = min(PER_REQUEST, partitions_count - first)
        request = streams_api.CreatePartitionsRequest(partitions_count=count)
        request.stream.name, request.topic.name = STREAM, topic
        driver.do(request)


def _topic(name: str, partitions_count: int, factor: int) -> streams_api.CreateTopicRequest:
    options = streams_pb2.TopicOptions(replication_factor=factor)
    return streams_api.CreateTopicRequest(
        stream=by(STREAM), name=name, partitions_count=partitions_count, options=options
    )


def _registration(number: int) -> brokers_api.RegisterBrokerRequest:
    endpoints = [
        brokers_pb2.BrokerEndpoint(listener=long_name(each), host=long_name(number), port=1)
        for each in range(limits.BROKER_ENDPOINTS_MAX)
    ]
    return brokers_api.RegisterBrokerRequest(
        name=long_name(number),
        rack=long_name(number),
        storage_id=STORAGE_ID,
        endpoints=endpoints,
    )


def _placing(partitions: Iterable[int], shift: int = 0) -> brokers_api.PlacePartitionsRequest:
    """Return a request that places partitions of the first topic, each on other brokers."""
    assignments = [
        brokers_api.PartitionAssignment(partition=number, replicas=_replicas(number + shift))
        for number in partitions
    ]
    return brokers_api.PlacePartitionsRequest(
        stream=by(STREAM), topic=by(LED), assignments=assignments
    )


def _replicas(number: int) -> list[int]:
    """Return the leader, and brokers beside it and the spare one, in an order of the number's."""
    others = limits.BROKERS_MAX - 2
    step, start = divmod(number, others)
    places = range(limits.REPLICAS_PER_PARTITION_MAX - 1)
    return [LEADER, *((start + place * (step + 1)) % others + 2 for place in places)]
