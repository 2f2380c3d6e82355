"""`client.brokers.session`: a broker that keeps itself registered, and knows what it leads.

A task shows life for the broker, and registers it again when the cluster has fenced it. An informer
follows brokers and placements, of which `broker_leaders` derives who leads: all at one revision.

A broker that was not answered for its timeout leads nothing (`viewstamp.client.lease`): the cluster
may have fenced it, and others may lead its partitions. The same holds until the informer has seen
the registration under which the broker acts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from viewstamp.api.brokers.v1 import brokers_pb2
from viewstamp.api.brokers.v1 import brokers_service_pb2 as service_pb2
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.client.broker_replicas import NO_EPOCH, HeldReplica, ReplicaTable, TopicPartition
from viewstamp.client.consistency import Consistency
from viewstamp.client.errors import ClientClosed, ClientError
from viewstamp.client.identifiers import topic_name
from viewstamp.client.informer import InformedClient, Informer
from viewstamp.client.lease import Lease
from viewstamp.client.verdicts import RetryVerdict
from viewstamp.errors import Refusal
from viewstamp.limits import BROKER_HEARTBEAT_MS, BROKER_TIMEOUT_US

logger = logging.getLogger(__name__)

_MS_PER_S: Final = 1_000
_US_PER_S: Final = 1_000_000
# Detail of FENCED_BROKER_EPOCH: the epoch of the last registration.
EPOCH_DETAIL: Final = "broker_epoch"
# Between two registrations of a broker that is fenced again and again.
REGISTRATION_PAUSE_S: Final = 0.05
# The end of the client's session is no end of the broker's: the next command begins another one.
_FINAL: Final = frozenset({RetryVerdict.FINAL})
_NOTHING: Final[Mapping[Any, Any]] = MappingProxyType({})


class BrokerClient(InformedClient, Protocol):
    """What a session of a broker needs of a client."""

    async def call(
        self, request: Message, *, consistency: Consistency = ..., timeout_s: float | None = ...
    ) -> Any:
        """Call the method of `request` and return its response."""


@dataclass(frozen=True, slots=True)
class LeadsChange:
    """What a broker leads from now on, with the leader epochs, and what it leads no more.

    `began` has a partition again if its epoch has changed. The broker must stop to serve `ended`
    at once: others may lead these already.
    """

    began: Mapping[TopicPartition, int] = field(default_factory=dict)
    ended: frozenset[TopicPartition] = frozenset()


class BrokerSession:
    """One broker, as `async with` and `async for`; made by `client.brokers.session`.

    Its errors come from the iteration: Refusal (PERMISSION_DENIED, INVALID_BROKER, BROKER_NOT_FOUND
    once it is unregistered, FENCED_BROKER_EPOCH once another process has registered it, ...),
    ClientError. Entering raises them, too. Entering returns once it is known what the broker leads.
    Leaving the block resigns, so that others lead at once: stop to serve before.
    """

    def __init__(
        self,
        client: BrokerClient,
        request: service_pb2.RegisterBrokerRequest,
        clock_s: Callable[[], float] | None = None,
    ) -> None:
        self._client = client
        self._request = request
        self._lease = Lease(
            step=self._step,
            lose=self._tell,
            end=self._end,
            final=_FINAL,
            timeout_s=request.timeout_ms / _MS_PER_S or BROKER_TIMEOUT_US / _US_PER_S,
            interval_s=BROKER_HEARTBEAT_MS / _MS_PER_S,
            clock_s=clock_s,
        )
        self._id = self._epoch = 0
        self._replicas = ReplicaTable(0)
        self._informer: Informer | None = None
        self._told: dict[TopicPartition, int] = {}
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def broker_id(self) -> int:
        """The broker's id."""
        return self._id

    @property
    def broker_epoch(self) -> int:
        """Its epoch: the revision of its registration."""
        return self._epoch

    @property
    def stamp(self) -> common_pb2.BrokerStamp:
        """What the broker acts with at this moment."""
        seen = 0 if self._informer is None else self._informer.revision
        return common_pb2.BrokerStamp(
            broker_id=self._id, broker_epoch=self._epoch, seen_revision=seen
        )

    @property
    def leads(self) -> Mapping[TopicPartition, int]:
        """The partitions that it leads at this moment, each with its leader epoch."""
        return dict(self._replicas.leads) if self._may_lead else _NOTHING

    def leader_epoch(self, partition: TopicPartition) -> int:
        """Return the epoch in which it leads a partition at this moment; 0 if it does not."""
        return self._replicas.leads.get(partition, NO_EPOCH) if self._may_lead else NO_EPOCH

    @property
    def replicas(self) -> Mapping[TopicPartition, HeldReplica]:
        """The partitions of which it has a replica, with their leaders; also while unheard.

        What is in it changes as the session follows the changes.
        """
        return self._replicas.held

    @property
    def brokers(self) -> Mapping[int, brokers_pb2.Broker]:
        """All brokers by id, as far as it has followed the changes. Do not change them."""
        return self._replicas.brokers

    async def __aenter__(self) -> BrokerSession:
        """Register, and wait until it is known what the broker leads."""
        await self._register(self._client.call(self._request))
        self._replicas = ReplicaTable(self._id)
        try:
            self._tasks = [asyncio.create_task(self._lease.keep())]
            self._informer = await self._informed()
            self._tasks.append(asyncio.create_task(self._follow(self._informer)))
            await self._informer.come_to(self._epoch)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Lead nothing, and resign."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lease.forget()
        if self._failure is None:
            self._failure = ClientClosed("the broker's session is over: begin another one")
        self._tell()
        if self._informer is not None:
            await self._informer.__aexit__()
        try:
            await self._client.call(service_pb2.ResignBrokerRequest(broker=self.stamp))
        except (Refusal, ClientError) as error:
            logger.info("a broker could not resign, and will be fenced: %s", error)

    def __aiter__(self) -> BrokerSession:
        return self

    async def __anext__(self) -> LeadsChange:
        """Wait until what it leads differs from what the last change told, and return how.

        Changes that come before the program asks are one change. Raises the errors of the class.
        """
        while (change := self._change()) == LeadsChange():
            if self._failure is not None:
                raise self._failure
            self._news.clear()
            await self._news.wait()
        for partition in change.ended:
            del self._told[partition]
        self._told |= change.began
        return change

    async def come_to(self, revision: int) -> None:
        """Wait until it has followed the changes up to a revision. Raises Refusal, ClientError."""
        if self._informer is None:
            raise ClientClosed("the broker's session has not begun: use it within `async with`")
        await self._informer.come_to(revision)

    async def update_in_sync(self, partition: TopicPartition, in_sync: tuple[int, ...]) -> None:
        """Tell who has all that was acknowledged of a partition, and wait until that is seen.

        A leader waits for a replica that it adds from now on, and for one that it drops until this
        returns. Raises Refusal (NOT_LEADER, FENCED_BROKER_EPOCH, ...), ClientError: the leader goes
        on as before, and the next change tells if it leads no more.
        """
        told = service_pb2.InSyncReplicas(partition=partition.partition, in_sync=in_sync)
        request = service_pb2.UpdateInSyncRequest(
            **topic_name(partition.stream_id, partition.topic_id),
            broker=self.stamp,
            partitions=[told],
        )
        answer = await self._client.call(request)
        held = self._replicas.held.get(partition)
        # A revision that changes nothing is told of late.
        if held is None or frozenset(held.in_sync) != frozenset(in_sync):
            await self.come_to(answer.header.revision)

    def _change(self) -> LeadsChange:
        leads = self.leads
        began = {each: epoch for each, epoch in leads.items() if self._told.get(each) != epoch}
        return LeadsChange(began, frozenset(self._told.keys() - leads.keys()))

    @property
    def _may_lead(self) -> bool:
        """Whether it was answered lately, in the epoch that the informer has seen last."""
        seen = self._replicas.brokers.get(self._id)
        is_seen = seen is not None and seen.broker_epoch == self._epoch
        return is_seen and self._lease.is_heard and self._failure is None

    # --- What has changed ---

    async def _informed(self) -> Informer:
        """Begin to follow brokers and placements."""
        informer = Informer(self._client, [brokers_pb2.Broker, brokers_pb2.Placements])
        informer.on_change(
            added=self._put,
            updated=lambda _, new: self._put(new),
            deleted=self._remove,
            failed=lambda error, _: self._end(error),
        )
        return await informer.__aenter__()

    def _put(self, entity: Message) -> None:
        # The changes of a revision are told one after another; nobody looks in between.
        self._replicas.put(entity)
        if isinstance(entity, brokers_pb2.Broker) and entity.id == self._id and entity.fenced:
            self._lease.wake()  # so that it registers at once
        self._tell()

    def _remove(self, entity: Message) -> None:
        self._replicas.remove(entity)
        self._tell()

    def _tell(self) -> None:
        self._news.set()

    async def _follow(self, informer: Informer) -> None:
        """Wait for the end of the informer, which is the end of the session."""
        try:
            await informer.ended()
        # Whatever it is: else the broker would show life, and lead what it cannot know of.
        except Exception as error:
            self._end(error)

    # --- Signs of life ---

    async def _step(self) -> None:
        """Show life once; register again if the broker was fenced."""
        if self._epoch:
            try:
                await self._keep_alive()
                return
            except Refusal as refusal:
                if not self._is_fenced(refusal):
                    raise
        # Until the answer comes nobody knows its epoch: a failure begins here again.
        self._epoch = 0
        self._lease.forget()
        self._tell()
        # Without a deadline: no copy of the command can take effect after the answer.
        await self._register(self._client.call(self._request, timeout_s=None))
        await asyncio.sleep(REGISTRATION_PAUSE_S)
        self._lease.wake()

    async def _keep_alive(self) -> None:
        sent_s = self._lease.now_s
        request = service_pb2.KeepAliveBrokerRequest(broker=self.stamp)
        answer = await self._lease.in_time(self._client.call(request))
        self._lease.timeout_s = answer.timeout_ms / _MS_PER_S
        self._lease.interval_s = answer.interval_ms / _MS_PER_S
        self._lease.hear(sent_s)
        self._tell()

    async def _register(self, call: Awaitable[service_pb2.RegisterBrokerResponse]) -> None:
        """Begin an epoch by a call that was not sent yet."""
        sent_s = self._lease.now_s
        answer = await call
        self._id, self._epoch = answer.broker_id, answer.broker_epoch
        self._lease.hear(sent_s)
        self._tell()

    def _is_fenced(self, refusal: Refusal) -> bool:
        """Whether a refusal says that the epoch is over, and that no other one has begun.

        If another process has registered the broker, the two would take turns for ever.
        """
        is_over = refusal.reason == Reason.REASON_FENCED_BROKER_EPOCH
        return is_over and refusal.details.get(EPOCH_DETAIL) == str(self._epoch)

    def _end(self, failure: BaseException) -> None:
        """Lead nothing any more, and show no life, so that others lead."""
        self._failure = failure
        for task in self._tasks:
            task.cancel()
        self._tell()
