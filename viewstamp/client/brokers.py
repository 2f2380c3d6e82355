"""`client.brokers`: brokers, and who has and leads the partitions of topics."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as service_pb2
from viewstamp.api.common.v1 import common_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.identifiers import Answer, Facade, Guards, identifier, pages, topic_name

if TYPE_CHECKING:
    from viewstamp.client.broker_session import BrokerClient, BrokerSession


class Brokers(Facade):
    """Brokers by id or name. The RPCs of BrokersService document the errors."""

    def __init__(self, client: BrokerClient) -> None:
        super().__init__(client)
        self._session_client = client

    def register(
        self,
        name: str,
        endpoints: Mapping[str, tuple[str, int]],
        *,
        storage_id: str,
        rack: str = "",
        timeout_ms: int = 0,
        user_id: int | None = None,
        validate_only: bool = False,
    ) -> Answer[service_pb2.RegisterBrokerResponse]:
        """Register a broker, or begin its next epoch; it may be silent for 9 s by default.

        `endpoints` are host and port by listener. `storage_id` names its storage: with another one
        it has lost its data. A program that leads partitions uses `session` instead.
        """
        return self._client.call(
            registration(
                name,
                endpoints,
                storage_id=storage_id,
                rack=rack,
                timeout_ms=timeout_ms,
                user_id=user_id,
                validate_only=validate_only,
            )
        )

    def session(
        self,
        name: str,
        endpoints: Mapping[str, tuple[str, int]],
        *,
        storage_id: str,
        rack: str = "",
        timeout_ms: int = 0,
    ) -> BrokerSession:
        """Return a registration that keeps itself alive, for `async with` and `async for`."""
        # Imported late: it needs an informer, and the command line needs none.
        from viewstamp.client.broker_session import BrokerSession

        request = registration(
            name, endpoints, storage_id=storage_id, rack=rack, timeout_ms=timeout_ms
        )
        return BrokerSession(self._session_client, request)

    def resign(
        self, broker: common_pb2.BrokerStamp, *, validate_only: bool = False
    ) -> Answer[service_pb2.ResignBrokerResponse]:
        """End the epoch of a broker that stops: others lead at once."""
        request = service_pb2.ResignBrokerRequest(broker=broker, validate_only=validate_only)
        return self._client.call(request)

    def update(
        self, broker: int | str, *, draining: bool | None = None, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.UpdateBrokerResponse]:
        """Have a broker drained, or used again; absent arguments change nothing."""
        request = service_pb2.UpdateBrokerRequest(
            broker=identifier(broker), draining=draining, **guards
        )
        return self._client.call(request)

    def unregister(
        self, broker: int | str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.UnregisterBrokerResponse]:
        """Forget a broker that has no replicas."""
        request = service_pb2.UnregisterBrokerRequest(broker=identifier(broker), **guards)
        return self._client.call(request)

    async def get(
        self, broker: int | str, *, consistency: Consistency = LINEARIZABLE
    ) -> brokers_pb2.Broker:
        """Return a broker."""
        request = service_pb2.GetBrokerRequest(broker=identifier(broker))
        response = await self._client.call(request, consistency=consistency)
        found: brokers_pb2.Broker = response.broker
        return found

    def list(
        self, *, page_size: int = 0, consistency: Consistency = LINEARIZABLE
    ) -> AsyncIterator[brokers_pb2.Broker]:
        """Iterate over all brokers by ascending id."""
        request = service_pb2.ListBrokersRequest(page_size=page_size)
        return pages(self._client, request, lambda page: page.brokers, consistency)

    def placements(
        self,
        stream: int | str,
        topic: int | str,
        *,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> AsyncIterator[brokers_pb2.Placement]:
        """Iterate over who has and who leads the placed partitions, by ascending number."""
        request = service_pb2.ListPlacementsRequest(
            **topic_name(stream, topic), page_size=page_size
        )
        return pages(self._client, request, lambda page: page.placements, consistency)

    def place(
        self,
        stream: int | str,
        topic: int | str,
        replicas: Mapping[int, Sequence[int]],
        *,
        allow_data_loss: bool = False,
        **guards: Unpack[Guards],
    ) -> Answer[service_pb2.PlacePartitionsResponse]:
        """Give partitions to brokers: ids by partition, the preferred leader first.

        An empty sequence leaves the choice to the cluster, for a partition that is not placed. The
        `expected_revision` is the highest `revision` of these placements.
        """
        request = service_pb2.PlacePartitionsRequest(
            **topic_name(stream, topic),
            assignments=[
                service_pb2.PartitionAssignment(partition=partition, replicas=broker_ids)
                for partition, broker_ids in sorted(replicas.items())
            ],
            allow_data_loss=allow_data_loss,
            **guards,
        )
        return self._client.call(request)

    def update_in_sync(
        self,
        stream: int | str,
        topic: int | str,
        in_sync: Mapping[int, Sequence[int]],
        *,
        broker: common_pb2.BrokerStamp,
        validate_only: bool = False,
    ) -> Answer[service_pb2.UpdateInSyncResponse]:
        """Tell which replicas have all that was acknowledged: ids by partition that it leads."""
        request = service_pb2.UpdateInSyncRequest(
            **topic_name(stream, topic),
            broker=broker,
            partitions=[
                service_pb2.InSyncReplicas(partition=partition, in_sync=broker_ids)
                for partition, broker_ids in sorted(in_sync.items())
            ],
            validate_only=validate_only,
        )
        return self._client.call(request)


def registration(
    name: str,
    endpoints: Mapping[str, tuple[str, int]],
    *,
    storage_id: str,
    rack: str = "",
    timeout_ms: int = 0,
    user_id: int | None = None,
    validate_only: bool = False,
) -> service_pb2.RegisterBrokerRequest:
    """Return the request that registers a broker."""
    return service_pb2.RegisterBrokerRequest(
        name=name,
        rack=rack,
        endpoints=[
            brokers_pb2.BrokerEndpoint(listener=listener, host=host, port=port)
            for listener, (host, port) in endpoints.items()
        ],
        storage_id=storage_id,
        timeout_ms=timeout_ms,
        user_id=user_id,
        validate_only=validate_only,
    )
