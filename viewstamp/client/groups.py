"""`client.groups`: consumer groups. The member of a group is the client's session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Unpack

from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as service_pb2
from viewstamp.client.consistency import LINEARIZABLE, Consistency
from viewstamp.client.identifiers import (
    Answer,
    Facade,
    FacadeClient,
    Guards,
    group_name,
    identifier,
    microseconds,
    pages,
    partition_offsets,
    topic_name,
)
from viewstamp.client.membership import GroupMember
from viewstamp.client.pulse import Pulse


class Groups(Facade):
    """Groups of topics, all by id or name. ConsumerGroupsService documents the errors."""

    def __init__(self, client: FacadeClient, pulse: Pulse | None = None) -> None:
        """Call by `client`; its stream tells `pulse` what changes."""
        super().__init__(client)
        self._pulse = pulse

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
        offsets_retention_ms: int = 0,
        validate_only: bool = False,
    ) -> Answer[service_pb2.CreateConsumerGroupResponse]:
        """Create a group, by default with the uniform assignor and a timeout of 45 s.

        Its offsets are kept for ever, or for `offsets_retention_ms` without members and commits.
        """
        request = service_pb2.CreateConsumerGroupRequest(
            **topic_name(stream, topic),
            name=name,
            assignor=assignor,
            member_timeout_ms=member_timeout_ms,
            offsets_retention_ms=offsets_retention_ms,
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
        offsets_retention_ms: int | None = None,
        **guards: Unpack[Guards],
    ) -> Answer[service_pb2.UpdateConsumerGroupResponse]:
        """Change how a group divides partitions, how long its members may be silent, and how long
        its offsets are kept without members."""
        request = service_pb2.UpdateConsumerGroupRequest(
            **group_name(stream, topic, group),
            assignor=assignor,
            member_timeout_ms=member_timeout_ms,
            offsets_retention_ms=offsets_retention_ms,
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
        validate_only: bool = False,
    ) -> Answer[service_pb2.JoinConsumerGroupResponse]:
        """Make this client's session a member; joining twice is idempotent."""
        request = service_pb2.JoinConsumerGroupRequest(
            **group_name(stream, topic, group),
            instance_id=instance_id,
            rack=rack,
            validate_only=validate_only,
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
        name = group_name(stream, topic, group)
        return GroupMember(self._client, name, instance_id, rack, pulse=self._pulse)

    def leave(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        keep_place: bool = False,
        validate_only: bool = False,
    ) -> Answer[service_pb2.LeaveConsumerGroupResponse]:
        """End this client's membership; a static member may keep its place for a while."""
        request = service_pb2.LeaveConsumerGroupRequest(
            **group_name(stream, topic, group), keep_place=keep_place, validate_only=validate_only
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
        validate_only: bool = False,
    ) -> Answer[service_pb2.HeartbeatConsumerGroupResponse]:
        """Report the partitions that the member still holds; return those that it should hold.

        Nothing counts as given up unless `known_assignment` is the `assignment` of the last answer.
        """
        request = service_pb2.HeartbeatConsumerGroupRequest(
            **group_name(stream, topic, group),
            member_epoch=member_epoch,
            owned_partitions=sorted(owned_partitions),
            known_assignment=known_assignment,
            validate_only=validate_only,
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
        member_epoch: int = 0,
        session_id: int = 0,
        allow_out_of_range: bool = False,
        **guards: Unpack[Guards],
    ) -> Answer[service_pb2.CommitOffsetsResponse]:
        """Store the next offset to read, by partition: all of them, or none if one is refused.

        Members have `GroupMember.commit`. A broker that commits for a member names the member's
        session and epoch. A group without members has epoch 0. Of offsets the `expected_revision`
        is the group's `offsets_revision`, here and below.
        """
        request = service_pb2.CommitOffsetsRequest(
            **group_name(stream, topic, group),
            member_epoch=member_epoch,
            offsets=partition_offsets(offsets),
            allow_out_of_range=allow_out_of_range,
            session_id=session_id,
            **guards,
        )
        return self._client.call(request)

    def reset_offsets(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        offsets: Mapping[int, int] | None = None,
        *,
        to: service_pb2.OffsetReset.ValueType = service_pb2.OFFSET_RESET_UNSPECIFIED,
        time: datetime | None = None,
        partitions: Iterable[int] | None = None,
        allow_out_of_range: bool = False,
        **guards: Unpack[Guards],
    ) -> Answer[service_pb2.ResetOffsetsResponse]:
        """Set offsets of a group without members: to given ones, or `to` where the data is.

        Give `offsets` by partition, and say whether they may be out of range. Or give `to`,
        OFFSET_RESET_EARLIEST or OFFSET_RESET_LATEST, for the `partitions`, or for all without them.
        Or give a `time` instead of `to`: then the group reads on where `find_offsets` says. Raises
        ValueError for no partition, and for a time without a time zone.
        """
        request = service_pb2.ResetOffsetsRequest(
            **group_name(stream, topic, group),
            offsets=partition_offsets(offsets or {}),
            allow_out_of_range=allow_out_of_range,
            to=to if time is None else to or service_pb2.OFFSET_RESET_TIME,
            time_us=0 if time is None else microseconds(time),
            partitions=_some_or_all(partitions),
            **guards,
        )
        return self._client.call(request)

    def delete_offsets(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        partitions: Iterable[int] | None = None,
        **guards: Unpack[Guards],
    ) -> Answer[service_pb2.DeleteOffsetsResponse]:
        """Forget offsets of a group without members: of some partitions, or of all without them.

        Raises ValueError for no partition.
        """
        request = service_pb2.DeleteOffsetsRequest(
            **group_name(stream, topic, group),
            partitions=_some_or_all(partitions),
            **guards,
        )
        return self._client.call(request)

    async def fetch_offsets(
        self,
        stream: int | str,
        topic: int | str,
        group: int | str,
        *,
        partitions: Iterable[int] | None = None,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> AsyncIterator[consumer_groups_pb2.CommittedOffset]:
        """Iterate over the offsets of some partitions, or of all without them, by partition.

        Partitions without an offset are left out. Up to 16,384 can be named.
        """
        named = None if partitions is None else sorted(partitions)
        if named == []:
            return
        request = service_pb2.FetchOffsetsRequest(
            **group_name(stream, topic, group), partitions=named or (), page_size=page_size
        )
        async for each in pages(self._client, request, lambda page: page.offsets, consistency):
            yield each

    async def find_offsets(
        self,
        stream: int | str,
        topic: int | str,
        time: datetime,
        *,
        partitions: Iterable[int] | None = None,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> AsyncIterator[consumer_groups_pb2.FoundOffset]:
        """Iterate over where to read what was written from a time on, by ascending partition.

        Up to 16,384 partitions can be named; without them it is all. Those of which nothing was
        reported are left out. Raises ValueError for a time without a time zone.
        """
        named = None if partitions is None else sorted(partitions)
        if named == []:
            return
        request = service_pb2.FindOffsetsRequest(
            **topic_name(stream, topic),
            time_us=microseconds(time),
            partitions=named or (),
            page_size=page_size,
        )
        async for each in pages(self._client, request, lambda page: page.offsets, consistency):
            yield each

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

    def list_all(
        self,
        stream: int | str | None = None,
        *,
        page_size: int = 0,
        consistency: Consistency = LINEARIZABLE,
    ) -> AsyncIterator[consumer_groups_pb2.ConsumerGroup]:
        """Iterate over the groups of all topics of a stream, or of all streams, without members.

        They come by ascending ids of stream, topic and group. Needs feature level 8.
        """
        request = service_pb2.ListAllConsumerGroupsRequest(
            stream=None if stream is None else identifier(stream), page_size=page_size
        )
        return pages(self._client, request, lambda page: page.groups, consistency)


def _some_or_all(partitions: Iterable[int] | None) -> Sequence[int]:
    """Return the partitions of a request, for which none at all means all. Raises ValueError.

    A program that has computed no partition does not mean all of them.
    """
    if partitions is None:
        return ()
    named = sorted(partitions)
    if not named:
        raise ValueError("no partition is named: leave `partitions` out for all of them")
    return named
