"""What users do with brokers in a world, so that nothing of it lasts.

Once a broker is registered the topics of all others get replicas, and are refused while no broker
is there for these. So brokers come and go in one transaction, or are only validated; what is asked
of brokers beside that finds none, unless the run has brokers of its own.
"""

from __future__ import annotations

from testkit.world.wanderers import Wanderer
from viewstamp.api.brokers.v1 import brokers_service_pb2 as brokers_pb2
from viewstamp.api.common.v1.common_pb2 import BrokerStamp
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.client import LINEARIZABLE, STALE
from viewstamp.client.brokers import registration
from viewstamp.client.identifiers import identifier, topic_name

_ENDPOINTS = {"internal": ("broker.local", 9_000)}
_PARTITIONS_MAX = 300  # more than two rows of placements have
_NOBODY = 1 << 20


async def pass_by(w: Wanderer) -> None:
    """Register a broker, give it a topic, shrink that, and take all back, at one revision."""
    a, name = w.random.choice("abc"), f"{w.name}-passing"
    await w.tried(w.client.streams.create(a), None)
    options = streams_pb2.TopicOptions(replication_factor=w.random.choice((1, 1, 1, 2)))
    count = w.random.randint(2, _PARTITIONS_MAX)
    place = topic_name(a, name)
    made = streams_api.CreateTopicRequest(
        stream=identifier(a), name=name, partitions_count=count, options=options
    )
    fewer = streams_api.DeletePartitionsRequest(
        **place, partitions_count=w.random.randint(1, count - 1)
    )
    open_ones = [
        brokers_pb2.PartitionAssignment(partition=each) for each in range(w.random.randint(1, 2))
    ]
    await w.client.transact(
        [
            registration(name, _ENDPOINTS, storage_id="disk", rack=w.random.choice("rs")),
            made,
            brokers_pb2.PlacePartitionsRequest(**place, assignments=open_ones),
            brokers_pb2.UpdateBrokerRequest(broker=identifier(name), draining=True),
            fewer,
            streams_api.DeleteTopicRequest(**place),
            brokers_pb2.UnregisterBrokerRequest(broker=identifier(name)),
        ]
    )


async def ask_for_brokers(w: Wanderer) -> None:
    """Ask as a broker that is not there, and list brokers and placements."""
    brokers, level = w.client.brokers, w.random.choice((LINEARIZABLE, STALE))
    a, b = (w.random.choice("abc") for _ in range(2))
    stamp = BrokerStamp(broker_id=_NOBODY, broker_epoch=1, seen_revision=1)
    await w.tried(brokers.register(w.name, _ENDPOINTS, storage_id="disk", validate_only=True), None)
    await w.tried(brokers.resign(stamp), None)
    await w.tried(brokers.update_in_sync(a, b, {0: [_NOBODY]}, broker=stamp), None)
    if w.access.has_brokers:
        return
    for broker in [each async for each in brokers.list(consistency=level)]:
        w.fail(f"{w.name} was told of a broker, and nobody registered one for long: {broker}")
    for placed in [each async for each in brokers.placements(a, b, consistency=level)]:
        w.fail(f"{w.name} was told of a placement, and there are no brokers: {placed}")
