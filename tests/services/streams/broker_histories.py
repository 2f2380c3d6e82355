"""Random histories of brokers and of topics that they have, for Hypothesis."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.services.streams.brokers_workbench import placing, registration, telling
from tests.services.streams.streams_workbench import ROOT, by, topic_request
from tests.services.streams.test_streams_properties import Rehearsal
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp, PartitionOffset
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.errors import Refusal

NAMES: Final = st.sampled_from(["one", "two", "three"])
TOPICS: Final = st.sampled_from(["a", "b"])
BROKERS: Final = st.integers(1, 4)
PARTITIONS: Final = st.sampled_from([0, 1, 127, 128])
REPLICAS: Final = st.lists(BROKERS, max_size=3, unique=True)


class BrokerHistory(RuleBasedStateMachine):
    """Brokers come and go, and lead partitions of two rows; much of it is refused."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Rehearsal()

    @initialize()
    def begin_with_some(self) -> None:
        """Begin with a topic that is not placed, brokers, and one that is."""
        self.bench.create_stream("orders")
        self.attempt("CreateTopic", topic_called("a", 2, 1))
        for name in ("one", "two"):
            self.register(name, "r", is_new_storage=False)
        self.attempt("CreateTopic", topic_called("b", 130, 2))

    def attempt(self, name: str, request: Any) -> None:
        """Send a command, which may be refused; then it changes nothing."""
        before = self.bench.digest()
        try:
            self.bench.command(name, request, ROOT)
        except Refusal:
            assert self.bench.digest() == before

    def stamp(self, broker_id: int) -> BrokerStamp:
        """Return the stamp of a broker that has seen everything, whether it is there or not."""
        broker = self.bench.state.brokers.get(broker_id)
        epoch = broker.broker_epoch if broker is not None else 1
        seen = self.bench.revision
        return BrokerStamp(broker_id=broker_id, broker_epoch=epoch, seen_revision=seen)

    @rule(name=NAMES, rack=st.sampled_from(["", "r"]), is_new_storage=st.booleans())
    def register(self, name: str, rack: str, is_new_storage: bool) -> None:
        """Register a broker, or begin its next epoch."""
        storage_id = f"{self.bench.revision}" if is_new_storage else "disk"
        self.attempt("RegisterBroker", registration(name, rack, storage_id=storage_id))

    @rule(broker_id=BROKERS, is_resigning=st.booleans())
    def end_epoch(self, broker_id: int, is_resigning: bool) -> None:
        """Let a broker resign, or fence it."""
        stamp = self.stamp(broker_id)
        if is_resigning:
            self.attempt("ResignBroker", api.ResignBrokerRequest(broker=stamp))
        else:
            silent = api.FenceBrokerRequest(broker_id=broker_id, broker_epoch=stamp.broker_epoch)
            self.attempt("FenceBroker", silent)

    @rule(name=NAMES, draining=st.booleans())
    def drain(self, name: str, draining: bool) -> None:
        """Have a broker drained, or used again."""
        self.attempt("UpdateBroker", api.UpdateBrokerRequest(broker=by(name), draining=draining))

    @rule(name=NAMES)
    def unregister(self, name: str) -> None:
        """Forget a broker."""
        self.attempt("UnregisterBroker", api.UnregisterBrokerRequest(broker=by(name)))

    @rule(topic=TOPICS, replicas=st.dictionaries(PARTITIONS, REPLICAS, max_size=3))
    def place(self, topic: str, replicas: dict[int, list[int]]) -> None:
        """Place partitions, or leave it to the cluster."""
        self.attempt("PlacePartitions", placing(topic, replicas, allow_data_loss=len(replicas) > 2))

    @rule(topic=TOPICS, partition=PARTITIONS, others=REPLICAS)
    def tell(self, topic: str, partition: int, others: list[int]) -> None:
        """Let whoever is the first replica say who is in sync."""
        found = self.bench.state.topics.find(1, topic)
        topic_id = found.id if found is not None else 0
        replicas = self.bench.state.placements.of(topic_id, partition).replicas
        leader = replicas[0] if replicas else 1
        told = [leader, *(each for each in others if each in replicas and each != leader)]
        self.attempt("UpdateInSync", telling(topic, self.stamp(leader), {partition: told}))

    @rule(topic=TOPICS, partition=PARTITIONS, broker_id=BROKERS)
    def report(self, topic: str, partition: int, broker_id: int) -> None:
        """Report the end of a partition."""
        ends = [PartitionOffset(partition=partition, offset=self.bench.revision)]
        request = streams_api.ReportPartitionEndsRequest
        report = topic_request(request, topic, end_offsets=ends, broker=self.stamp(broker_id))
        self.attempt("ReportPartitionEnds", report)

    @rule(topic=TOPICS, count=st.sampled_from([1, 2, 126]), is_more=st.booleans())
    def repartition(self, topic: str, count: int, is_more: bool) -> None:
        """Create or delete partitions at the end of a topic."""
        name = "CreatePartitions" if is_more else "DeletePartitions"
        kind = getattr(streams_api, f"{name}Request")
        self.attempt(name, topic_request(kind, topic, partitions_count=count))

    @rule(topic=TOPICS, factor=st.integers(1, 3), is_deleted=st.booleans())
    def renew(self, topic: str, factor: int, is_deleted: bool) -> None:
        """Delete a topic, or create it."""
        if is_deleted:
            self.attempt("DeleteTopic", topic_request(streams_api.DeleteTopicRequest, topic))
        else:
            self.attempt("CreateTopic", topic_called(topic, 130, factor))


def topic_called(name: str, partitions_count: int, factor: int) -> streams_api.CreateTopicRequest:
    """Return a request for a topic of orders."""
    options = streams_pb2.TopicOptions(replication_factor=factor)
    return streams_api.CreateTopicRequest(
        stream=by("orders"), name=name, partitions_count=partitions_count, options=options
    )
