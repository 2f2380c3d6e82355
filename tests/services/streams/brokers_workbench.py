"""Brokers on a streams machine, for tests: one line to register, place, or ask who leads."""

from __future__ import annotations

from typing import Any

from tests.services.streams.streams_workbench import ROOT, Workbench, by, orders_bench
from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import BrokerStamp
from viewstamp.api.domain.v1.domain_service_pb2 import Tenure
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.limits import MEMBER_CHECK_INTERVAL_MS


def registration(name: str, rack: str = "", **fields: Any) -> api.RegisterBrokerRequest:
    """Return a registration that is in order, but for the fields that a test names."""
    endpoint = brokers_pb2.BrokerEndpoint(listener="internal", host=f"{name}.local", port=9_000)
    said: dict[str, Any] = {"storage_id": "disk", "endpoints": [endpoint]}
    return api.RegisterBrokerRequest(name=name, rack=rack, **(said | fields))


class BrokersWorkbench:
    """A bench with topics (see `orders_bench`), and brokers as far as the test registers them."""

    def __init__(self, bench: Workbench | None = None) -> None:
        self.bench = bench or orders_bench()
        self.epochs: dict[int, int] = {}
        self._elapsed_ms = 0

    def register(self, name: str, rack: str = "", user: int = ROOT, **fields: Any) -> int:
        """Register a broker, and return its id."""
        answer = self.bench.command("RegisterBroker", registration(name, rack, **fields), user)
        broker_id: int = answer.broker_id
        self.epochs[broker_id] = answer.broker_epoch
        return broker_id

    def stamp(self, broker_id: int, seen_revision: int | None = None) -> BrokerStamp:
        """Return the stamp of a broker that has seen everything, or up to a revision."""
        seen = self.bench.revision if seen_revision is None else seen_revision
        epoch = self.epochs[broker_id]
        return BrokerStamp(broker_id=broker_id, broker_epoch=epoch, seen_revision=seen)

    def resign(self, broker_id: int) -> None:
        """Let a broker resign."""
        request = api.ResignBrokerRequest(broker=self.stamp(broker_id))
        self.bench.command("ResignBroker", request)

    def drain(self, broker_id: int, draining: bool = True) -> None:
        """Have a broker drained, or used again."""
        request = api.UpdateBrokerRequest(broker=by(broker_id), draining=draining)
        self.bench.command("UpdateBroker", request)

    def get(self, broker_id: int) -> brokers_pb2.Broker:
        """Return a broker as callers see it."""
        found: brokers_pb2.Broker = self.bench.query(
            "GetBroker", api.GetBrokerRequest(broker=by(broker_id))
        ).broker
        return found

    def create(self, topic: str, partitions_count: int, replication_factor: int = 1) -> int:
        """Create a topic of orders, and return its id."""
        options = streams_pb2.TopicOptions(replication_factor=replication_factor)
        request = streams_api.CreateTopicRequest(
            stream=by("orders"), name=topic, partitions_count=partitions_count, options=options
        )
        topic_id: int = self.bench.command("CreateTopic", request).topic_id
        return topic_id

    def place(self, topic: str, replicas: dict[int, list[int]], **fields: Any) -> None:
        """Place partitions of a topic of orders."""
        self.bench.command("PlacePartitions", placing(topic, replicas, **fields))

    def in_sync(self, topic: str, leader: int, told: dict[int, list[int]]) -> None:
        """Let a leader tell who is in sync."""
        self.bench.command("UpdateInSync", telling(topic, self.stamp(leader), told))

    def placements(self, topic: str, **fields: Any) -> dict[int, brokers_pb2.Placement]:
        """Return the placements of a topic of orders."""
        request = api.ListPlacementsRequest(stream=by("orders"), topic=by(topic), **fields)
        answer = self.bench.query("ListPlacements", request)
        return {each.partition: each for each in answer.placements}

    def leaders(self, topic: str) -> dict[int, int]:
        """Return who leads the partitions of a topic of orders; 0 for nobody."""
        return {number: each.leader for number, each in self.placements(topic).items()}

    def keep_alive(self, broker_id: int) -> api.KeepAliveBrokerResponse:
        """Let a broker show life."""
        request = api.KeepAliveBrokerRequest(broker=self.stamp(broker_id))
        answer: api.KeepAliveBrokerResponse = self.bench.query("KeepAliveBroker", request)
        return answer

    def check(self) -> list[int]:
        """Let the primary look for silent brokers once; return whom it wants to fence."""
        self._elapsed_ms += MEMBER_CHECK_INTERVAL_MS
        tenure = Tenure(number=1, elapsed_ms=self._elapsed_ms)
        domain = self.bench.machine.domain
        proposed = list(domain.silent(self.bench.state, tenure))
        return [api.FenceBrokerRequest.FromString(each.request).broker_id for each in proposed]

    def fence(self, broker_id: int) -> None:
        """Carry out what the primary proposes for a silent broker."""
        request = api.FenceBrokerRequest(broker_id=broker_id, broker_epoch=self.epochs[broker_id])
        self.bench.command("FenceBroker", request)


def placing(topic: str, replicas: dict[int, list[int]], **fields: Any) -> Any:
    """Return a request to place partitions of a topic of orders."""
    assignments = [
        api.PartitionAssignment(partition=number, replicas=ids) for number, ids in replicas.items()
    ]
    return api.PlacePartitionsRequest(
        stream=by("orders"), topic=by(topic), assignments=assignments, **fields
    )


def telling(topic: str, stamp: BrokerStamp, told: dict[int, list[int]]) -> Any:
    """Return what a broker tells of who is in sync."""
    partitions = [api.InSyncReplicas(partition=number, in_sync=ids) for number, ids in told.items()]
    return api.UpdateInSyncRequest(
        stream=by("orders"), topic=by(topic), broker=stamp, partitions=partitions
    )


def three_brokers() -> tuple[BrokersWorkbench, int, int, int]:
    """Return a bench with three brokers in racks `a`, `b` and `c`."""
    work = BrokersWorkbench()
    first, second, third = (work.register(f"broker-{rack}", rack) for rack in "abc")
    return work, first, second, third
