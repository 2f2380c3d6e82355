"""`client.groups.member`: a place in a consumer group that keeps itself alive.

A task shows life for the member, learns its partitions, and joins again when the cluster has
removed it. The program iterates over what changes. By asking for the next change it says that it
has stopped reading what the last one took away.

A member that was not answered for its group's timeout stops by itself (`viewstamp.client.lease`):
the cluster may have removed it, and others may read its partitions.

A program commits how far it has read with `GroupMember.commit`: of what it may read, and of what it
gives up, as long as it has not asked for the next change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2 as service_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client.errors import ClientError
from viewstamp.client.identifiers import FacadeClient, GroupName, partition_offsets
from viewstamp.client.lease import Lease
from viewstamp.client.pulse import Pulse
from viewstamp.client.verdicts import RetryVerdict
from viewstamp.errors import Refusal

logger = logging.getLogger(__name__)

# The cluster has removed the member, or has never heard of its epoch: join again.
_REMOVED: Final = frozenset({Reason.REASON_NOT_A_MEMBER, Reason.REASON_FENCED_MEMBER_EPOCH})
# What the member knows of its place is out of date.
_MOVED_ON: Final = _REMOVED | {Reason.REASON_PARTITION_NOT_OWNED}
# Nobody can join at the moment: the place of the instance is taken.
_NOT_YET: Final = frozenset({Reason.REASON_UNRELEASED_INSTANCE_ID})
# Before the first answer has told more.
_FIRST_TIMEOUT_S: Final = 45.0
_FIRST_INTERVAL_S: Final = 5.0
TAKEN_PAUSE_S: Final = 1.0
# Between two joins of a member that is removed again and again.
REJOIN_PAUSE_S: Final = 0.05
_MS_PER_S: Final = 1_000
# The client's session is the member: with the session the membership ends.
_FINAL: Final = frozenset({RetryVerdict.FINAL, RetryVerdict.ENDED})


@dataclass(frozen=True, slots=True)
class AssignmentChange:
    """What a member may read from now on, and what it may not; partitions are ascending.

    It may read `assigned`. It must stop reading `revoked`, and asks for the next change when it
    has: within 30 seconds (or its timeout, if that is longer), or the cluster removes it. Others
    may read `lost` already.
    """

    assigned: tuple[int, ...] = ()
    revoked: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()


class _Told(Protocol):
    """The answer to a heartbeat, and to a sign of life."""

    member_epoch: int
    assignment: int
    partitions_omitted: bool

    @property
    def owned_partitions(self) -> Any: ...

    @property
    def revoking_partitions(self) -> Any: ...


class GroupMember:
    """One membership, as `async with` and `async for`; made by `client.groups.member`.

    Its errors come from the iteration: Refusal (GROUP_NOT_FOUND, PERMISSION_DENIED, the end of the
    session, ...), ClientClosed. Entering raises them, too. Leaving the block leaves the group; with
    an instance id the place is kept for the group's timeout. A client is one member of a group: two
    of these for one group and client would share the partitions without knowing of each other.
    """

    def __init__(
        self,
        client: FacadeClient,
        name: GroupName,
        instance_id: str = "",
        rack: str = "",
        clock_s: Callable[[], float] | None = None,
        pulse: Pulse | None = None,
    ) -> None:
        """Begin outside of the group.

        All members of one client have its `pulse`; without one, nobody tells them of changes.
        """
        self._client = client
        self._name = name
        self._instance_id = instance_id
        self._rack = rack
        self._lease = Lease(
            step=self._step,
            lose=self._lose_all,
            end=self._end,
            final=_FINAL,
            timeout_s=_FIRST_TIMEOUT_S,
            interval_s=_FIRST_INTERVAL_S,
            clock_s=clock_s,
            pulse=pulse,
        )
        self._pulse = pulse
        self._group_id = 0  # as notices name it, once it is known
        self._epoch = self._assignment = 0
        # What the cluster said last; what the program reads; what of that it must hear was lost.
        self._owned: frozenset[int] = frozenset()
        self._revoking: frozenset[int] = frozenset()
        self._reading: frozenset[int] = frozenset()
        self._lost: frozenset[int] = frozenset()
        self._revoked: frozenset[int] = frozenset()  # by the last change that the program has
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._staying: asyncio.Task[None] | None = None

    @property
    def owned(self) -> frozenset[int]:
        """The partitions that may be read at this moment."""
        return (self._reading & self._owned) - self._lost if self._lease.is_heard else frozenset()

    @property
    def member_epoch(self) -> int:
        """The epoch that the member has reached."""
        return self._epoch

    async def __aenter__(self) -> GroupMember:
        """Join, once the place of the instance is free. Raises Refusal, ClientError."""
        await self._join()
        self._staying = asyncio.create_task(self._lease.keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the group, unless that is not possible any more."""
        if self._staying is not None:
            self._staying.cancel()
            await asyncio.gather(self._staying, return_exceptions=True)
        self._follow(0)
        self._lose_all()
        if self._failure is not None:
            return
        keep = bool(self._instance_id)
        try:
            request = service_pb2.LeaveConsumerGroupRequest(**self._name, keep_place=keep)
            await self._client.call(request)
        except (Refusal, ClientError) as error:
            logger.info("a member could not leave, and will be removed: %s", error)

    def __aiter__(self) -> GroupMember:
        return self

    async def __anext__(self) -> AssignmentChange:
        """Say that what was revoked is not read any more; wait for the next change, and return it.

        Raises the errors of the class.
        """
        if self._revoked:
            self._reading, self._revoked = self._reading - self._revoked, frozenset()
            self._lease.wake()
        while (change := self._change()) == AssignmentChange():
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        self._reading = (self._reading - self._lost) | frozenset(change.assigned)
        self._lost, self._revoked = frozenset(), frozenset(change.revoked)
        return change

    async def commit(
        self, offsets: Mapping[int, int], *, allow_out_of_range: bool = False
    ) -> service_pb2.CommitOffsetsResponse:
        """Store the next offset to read, by partition: all of them, or none if one is refused.

        Raises Refusal: PARTITION_NOT_OWNED for a partition that the program may not read any more,
        NOT_A_MEMBER if the cluster has removed the member. Then somebody else reads on from the
        last offset that was committed, and the next change tells what was lost.
        FENCED_MEMBER_EPOCH if it was removed and is back, or has not heard of its newest epoch yet:
        if no change comes, commit again. OFFSET_OUT_OF_RANGE for an offset outside of what the data
        plane has reported, unless that is allowed. Raises ClientError.
        """
        while True:
            self._check_held(offsets)
            epoch = self._epoch
            request = service_pb2.CommitOffsetsRequest(
                **self._name,
                member_epoch=epoch,
                offsets=partition_offsets(offsets),
                allow_out_of_range=allow_out_of_range,
            )
            try:
                committed: service_pb2.CommitOffsetsResponse = await self._client.call(request)
            except Refusal as refusal:
                if refusal.reason == Reason.REASON_FENCED_MEMBER_EPOCH and self._epoch > epoch:
                    continue  # a heartbeat that was under way has raised it
                if refusal.reason in _MOVED_ON:
                    self._lease.wake()  # so that the program hears of it at once
                raise
            return committed

    def _check_held(self, offsets: Mapping[int, int]) -> None:
        """Raise PARTITION_NOT_OWNED for a partition that the program does not read.

        The cluster cannot know that a member which joined again has what it read before, and others
        may have committed since.
        """
        strange = sorted(offsets.keys() - (self._reading - self._lost))
        if strange:
            raise Refusal(
                Reason.REASON_PARTITION_NOT_OWNED,
                f"this member does not hold partition {strange[0]}, so nothing was committed: "
                "commit partitions that it was assigned and has not lost, and revoked ones before "
                "you ask for the next change",
                partition=strange[0],
            )

    def _change(self) -> AssignmentChange:
        """Return how what the program may read differs from what it reads."""
        kept = self._reading - self._lost
        assigned = self._owned - kept if self._lease.is_heard else ()
        revoked = kept & self._revoking
        return AssignmentChange(*(tuple(sorted(each)) for each in (assigned, revoked, self._lost)))

    # --- The task ---

    async def _step(self) -> None:
        """Show life once, and tell what the cluster waits for; join again if it was removed."""
        try:
            must_heartbeat = await self._keep_alive()
            if self._revoking - self._reading or (must_heartbeat and not self._revoking):
                await self._heartbeat()
        except Refusal as refusal:
            if refusal.reason not in _REMOVED:
                raise
            self._lose_all()
            await self._join()
            await asyncio.sleep(REJOIN_PAUSE_S)
            self._lease.wake()

    # --- Calls ---

    async def _join(self) -> None:
        request = service_pb2.JoinConsumerGroupRequest(
            **self._name, instance_id=self._instance_id, rack=self._rack
        )
        while True:
            sent_s = self._lease.now_s
            try:
                joined = await self._client.call(request)
            except Refusal as refusal:
                if refusal.reason not in _NOT_YET:
                    raise
                await asyncio.sleep(TAKEN_PAUSE_S)
            else:
                self._epoch, self._assignment = joined.member_epoch, 0
                self._lease.hear(sent_s)
                return

    async def _keep_alive(self) -> bool:
        """Show life; return whether the cluster waits for a heartbeat."""
        request = service_pb2.KeepAliveConsumerGroupRequest(
            **self._name,
            member_epoch=self._epoch,
            known_assignment=self._assignment,
            takes_notices=self._pulse is not None,
        )
        sent_s = self._lease.now_s
        answer = await self._lease.in_time(self._client.call(request))
        self._lease.timeout_s = answer.timeout_ms / _MS_PER_S
        self._lease.interval_s = answer.interval_ms / _MS_PER_S
        self._follow(answer.group_id)
        await self._take(answer, sent_s)
        return bool(answer.must_heartbeat)

    def _follow(self, group_id: int) -> None:
        """Show life whenever the cluster says that something has changed in the group; 0: never."""
        if self._pulse is None or group_id == self._group_id:
            return
        self._pulse.leave(self._group_id, self._lease.wake)
        self._group_id = group_id
        if group_id:
            self._pulse.follow(group_id, self._lease.wake)

    async def _heartbeat(self) -> None:
        request = service_pb2.HeartbeatConsumerGroupRequest(
            **self._name,
            member_epoch=self._epoch,
            owned_partitions=sorted(self._revoking & self._reading),
            known_assignment=self._assignment,
        )
        sent_s = self._lease.now_s
        await self._take(await self._lease.in_time(self._client.call(request)), sent_s)

    async def _take(self, answer: _Told, sent_s: float) -> None:
        """Take in an answer."""
        self._epoch = answer.member_epoch
        if answer.assignment != self._assignment:
            owned, revoking = answer.owned_partitions, answer.revoking_partitions
            number = answer.assignment
            if answer.partitions_omitted:
                owned, revoking, number = await self._lease.in_time(self._synced())
            self._owned, self._revoking = frozenset(owned), frozenset(revoking)
            self._assignment = number
            self._lost |= self._reading - self._owned - self._revoking
        self._lease.hear(sent_s)
        self._news.set()

    async def _synced(self) -> tuple[list[int], list[int], int]:
        """Return all that the member has, of one assignment, page by page."""
        owned: list[int] = []
        revoking: list[int] = []
        request = service_pb2.SyncConsumerGroupRequest(**self._name)
        number = 0
        while True:
            page = await self._client.call(request)
            if number not in (0, page.assignment):
                return await self._synced()
            number = page.assignment
            owned += page.owned_partitions
            revoking += page.revoking_partitions
            if not page.next_page_token:
                return owned, revoking, number
            request.page_token = page.next_page_token

    def _lose_all(self) -> None:
        self._lost |= self._reading
        self._owned = self._revoking = frozenset()
        self._assignment = 0
        self._news.set()

    def _end(self, failure: BaseException) -> None:
        self._lose_all()
        self._failure = failure
