"""`client.groups`: consumer groups. The member of a group is the client's session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as service_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.identifiers import FacadeClient, identifier, pages


class Groups:
    """Groups of topics of streams, all by id or name. Errors: those of ConsumerGroupsService."""

    def __init__(self, client: FacadeClient) -> None:
        self._client = client

    async def create(
        self,
        stream: int | str,
        topic: int | str,
        name: str,
        *,
        assignor: consumer_groups_pb2.Assignor.ValueType = (
            consumer_groups_pb2.ASSIGNOR_UNSPECIFIED
        ),
        validate_only: bool = False,
    ) -> service_pb2.CreateConsumerGroupResponse:
        """Create a group, with the uniform assignor unless said otherwise."""
        response: service_pb2.CreateConsumerGroupResponse = await self._client.call(
            service_pb2.CreateConsumerGroupRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                name=name,
                assignor=assignor,
                validate_only=validate_only,
            )
        )
        return response

    async def delete(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        expected_revision: int | None = None,
        validate_only: bool = False,
    ) -> service_pb2.DeleteConsumerGroupResponse:
        """Delete a group with its members."""
        response: service_pb2.DeleteConsumerGroupResponse = await self._client.call(
            service_pb2.DeleteConsumerGroupRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                group=identifier(group),
                expected_revision=expected_revision,
                validate_only=validate_only,
            )
        )
        return response

    async def join(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        instance_id: str = "",
        rack: str = "",
    ) -> service_pb2.JoinConsumerGroupResponse:
        """Make this client's session a member; joining twice is idempotent."""
        response: service_pb2.JoinConsumerGroupResponse = await self._client.call(
            service_pb2.JoinConsumerGroupRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                group=identifier(group),
                instance_id=instance_id,
                rack=rack,
            )
        )
        return response

    async def leave(
        self, stream: int | str, topic: int | str, group: int | str
    ) -> service_pb2.LeaveConsumerGroupResponse:
        """End this client's membership."""
        response: service_pb2.LeaveConsumerGroupResponse = await self._client.call(
            service_pb2.LeaveConsumerGroupRequest(
                stream=identifier(stream), topic=identifier(topic), group=identifier(group)
            )
        )
        return response

    async def heartbeat(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        member_epoch: int,
        owned_partitions: Iterable[int],
    ) -> service_pb2.HeartbeatConsumerGroupResponse:
        """Tell what the member still holds; learn what it should hold."""
        response: service_pb2.HeartbeatConsumerGroupResponse = await self._client.call(
            service_pb2.HeartbeatConsumerGroupRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                group=identifier(group),
                member_epoch=member_epoch,
                owned_partitions=sorted(owned_partitions),
            )
        )
        return response

    async def sync(
        self, stream: int | str, topic: int | str, group: int | str
    ) -> service_pb2.SyncConsumerGroupResponse:
        """Return what this client's session owns in the group now, and in which epoch."""
        response: service_pb2.SyncConsumerGroupResponse = await self._client.call(
            service_pb2.SyncConsumerGroupRequest(
                stream=identifier(stream), topic=identifier(topic), group=identifier(group)
            )
        )
        return response

    async def commit_offsets(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        offsets: Mapping[int, int],
        *,
        member_epoch: int,
        allow_out_of_range: bool = False,
    ) -> service_pb2.CommitOffsetsResponse:
        """Store the next offset to read, by partition."""
        response: service_pb2.CommitOffsetsResponse = await self._client.call(
            service_pb2.CommitOffsetsRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                group=identifier(group),
                member_epoch=member_epoch,
                offsets=_offsets(offsets),
                allow_out_of_range=allow_out_of_range,
            )
        )
        return response

    async def reset_offsets(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        offsets: Mapping[int, int],
        *,
        allow_out_of_range: bool = False,
        validate_only: bool = False,
    ) -> service_pb2.ResetOffsetsResponse:
        """Set offsets of a group without members, by partition."""
        response: service_pb2.ResetOffsetsResponse = await self._client.call(
            service_pb2.ResetOffsetsRequest(
                stream=identifier(stream),
                topic=identifier(topic),
                group=identifier(group),
                offsets=_offsets(offsets),
                allow_out_of_range=allow_out_of_range,
                validate_only=validate_only,
            )
        )
        return response

    async def fetch_offsets(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        partitions: Sequence[int] = (),
        consistency: Consistency = LINEARIZABLE,
    ) -> dict[int, int]:
        """Return the next offset to read by partition, of all partitions that have one."""
        request = service_pb2.FetchOffsetsRequest(
            stream=identifier(stream),
            topic=identifier(topic),
            group=identifier(group),
            partitions=partitions,
        )
        response = await self._client.call(request, consistency=consistency)
        return {entry.partition: entry.offset for entry in response.offsets}

    async def get(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        consistency: Consistency = LINEARIZABLE,
    ) -> consumer_groups_pb2.ConsumerGroup:
        """Return a group with its members."""
        request = service_pb2.GetConsumerGroupRequest(
            stream=identifier(stream), topic=identifier(topic), group=identifier(group)
        )
        response = await self._client.call(request, consistency=consistency)
        found: consumer_groups_pb2.ConsumerGroup = response.group
        return found

    def list(
        self,
        stream: int | str,
        topic: int | str,
        *,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> AsyncIterator[consumer_groups_pb2.ConsumerGroup]:
        """Iterate over a topic's groups by ascending id, without members."""
        return pages(
            lambda token: self._client.call(
                service_pb2.ListConsumerGroupsRequest(
                    stream=identifier(stream),
                    topic=identifier(topic),
                    page_size=page_size,
                    page_token=token,
                ),
                consistency=consistency,
            ),
            lambda page: page.groups,
        )


def _offsets(offsets: Mapping[int, int]) -> Sequence[service_pb2.PartitionOffset]:
    return [
        service_pb2.PartitionOffset(partition=partition, offset=offset)
        for partition, offset in sorted(offsets.items())
    ]
