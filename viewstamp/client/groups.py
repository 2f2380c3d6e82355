"""`client.groups`: consumer groups. The member of a group is the client's session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Unpack

from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as service_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.identifiers import Answer, Facade, Guards, group_name, pages, topic_name
from viewstamp.client.membership import GroupMember


class Groups(Facade):
    """Groups of topics, all by id or name. ConsumerGroupsService documents the errors."""

    def create(
        self,
        stream: int | str,
        topic: int | str,
        name: str,
        *,
        assignor: consumer_groups_pb2.Assignor.ValueType = (
            consumer_groups_pb2.ASSIGNOR_UNSPECIFIED
        ),
        member_timeout_ms: int = 0,
        validate_only: bool = False,
    ) -> Answer[service_pb2.CreateConsumerGroupResponse]:
        """Create a group, by default with the uniform assignor and a timeout of 45 s."""
        request = service_pb2.CreateConsumerGroupRequest(
            **topic_name(stream, topic),
            name=name,
            assignor=assignor,
            member_timeout_ms=member_timeout_ms,
            validate_only=validate_only,
        )
        return self._client.call(request)

    def update(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        assignor: consumer_groups_pb2.Assignor.ValueType = (
            consumer_groups_pb2.ASSIGNOR_UNSPECIFIED
        ),
        member_timeout_ms: int | None = None,
        **guards: Unpack[Guards],
    ) -> Answer[service_pb2.UpdateConsumerGroupResponse]:
        """Change how a group divides partitions, and how long its members may be silent."""
        request = service_pb2.UpdateConsumerGroupRequest(
            **group_name(stream, topic, group),
            assignor=assignor,
            member_timeout_ms=member_timeout_ms,
            **guards,
        )
        return self._client.call(request)

    def delete(
        self, stream: int | str, topic: int | str, group: int | str, **guards: Unpack[Guards]
    ) -> Answer[service_pb2.DeleteConsumerGroupResponse]:
        """Delete a group with its members."""
        request = service_pb2.DeleteConsumerGroupRequest(
            **group_name(stream, topic, group), **guards
        )
        return self._client.call(request)

    def join(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        instance_id: str = "",
        rack: str = "",
    ) -> Answer[service_pb2.JoinConsumerGroupResponse]:
        """Make this client's session a member; joining twice is idempotent."""
        request = service_pb2.JoinConsumerGroupRequest(
            **group_name(stream, topic, group), instance_id=instance_id, rack=rack
        )
        return self._client.call(request)

    def member(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        instance_id: str = "",
        rack: str = "",
    ) -> GroupMember:
        """Return a membership that keeps itself alive, for `async with` and `async for`."""
        return GroupMember(self._client, group_name(stream, topic, group), instance_id, rack)

    def leave(
        self, stream: int | str, topic: int | str, group: int | str, *, keep_place: bool = False
    ) -> Answer[service_pb2.LeaveConsumerGroupResponse]:
        """End this client's membership; a static member may keep its place for a while."""
        request = service_pb2.LeaveConsumerGroupRequest(
            **group_name(stream, topic, group), keep_place=keep_place
        )
        return self._client.call(request)

    def keep_alive(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        member_epoch: int,
        known_assignment: int = 0,
    ) -> Answer[service_pb2.KeepAliveConsumerGroupResponse]:
        """Show that the member is alive; return what it should hold, unless it knows that."""
        request = service_pb2.KeepAliveConsumerGroupRequest(
            **group_name(stream, topic, group),
            member_epoch=member_epoch,
            known_assignment=known_assignment,
        )
        return self._client.call(request)

    def heartbeat(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        member_epoch: int,
        owned_partitions: Iterable[int],
        known_assignment: int = 0,
    ) -> Answer[service_pb2.HeartbeatConsumerGroupResponse]:
        """Report the partitions that the member still holds; return those that it should hold.

        Nothing counts as given up unless `known_assignment` is the `assignment` of the last answer.
        """
        request = service_pb2.HeartbeatConsumerGroupRequest(
            **group_name(stream, topic, group),
            member_epoch=member_epoch,
            owned_partitions=sorted(owned_partitions),
            known_assignment=known_assignment,
        )
        return self._client.call(request)

    def sync(
        self, stream: int | str, topic: int | str, group: int | str
    ) -> Answer[service_pb2.SyncConsumerGroupResponse]:
        """Return what this client's session owns in the group now, and in which epoch."""
        request = service_pb2.SyncConsumerGroupRequest(**group_name(stream, topic, group))
        return self._client.call(request)

    def commit_offsets(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        offsets: Mapping[int, int],
        *,
        member_epoch: int,
        allow_out_of_range: bool = False,
    ) -> Answer[service_pb2.CommitOffsetsResponse]:
        """Store the next offset to read, by partition."""
        request = service_pb2.CommitOffsetsRequest(
            **group_name(stream, topic, group),
            member_epoch=member_epoch,
            offsets=_offsets(offsets),
            allow_out_of_range=allow_out_of_range,
        )
        return self._client.call(request)

    def reset_offsets(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        offsets: Mapping[int, int],
        *,
        allow_out_of_range: bool = False,
        validate_only: bool = False,
    ) -> Answer[service_pb2.ResetOffsetsResponse]:
        """Set offsets of a group without members, by partition."""
        request = service_pb2.ResetOffsetsRequest(
            **group_name(stream, topic, group),
            offsets=_offsets(offsets),
            allow_out_of_range=allow_out_of_range,
            validate_only=validate_only,
        )
        return self._client.call(request)

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
            **group_name(stream, topic, group),
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
        request = service_pb2.GetConsumerGroupRequest(**group_name(stream, topic, group))
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
        request = service_pb2.ListConsumerGroupsRequest(
            **topic_name(stream, topic), page_size=page_size
        )
        return pages(self._client, request, lambda page: page.groups, consistency)


def _offsets(offsets: Mapping[int, int]) -> Sequence[service_pb2.PartitionOffset]:
    return [
        service_pb2.PartitionOffset(partition=partition, offset=offset)
        for partition, offset in sorted(offsets.items())
    ]
