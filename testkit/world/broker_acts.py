"""What the brokers of a world did and were told: the evidence for their judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_api
from viewstamp.client.broker_replicas import HeldReplica, TopicPartition

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from testkit.world.broker_book import BrokerBook
    from testkit.world.schedule import WorldSchedule
    from viewstamp.api.common.v1.common_pb2 import BrokerStamp
    from viewstamp.client import Client
    from viewstamp.client.broker_session import BrokerSession
    from viewstamp.client.watching import Watch

# A broker's id, and one of its epochs.
Tenancy: TypeAlias = tuple[int, int]


class BrokerLook(NamedTuple):
    """What a session said at one time, of one revision."""

    who: str
    broker_id: int
    revision: int
    leads: Mapping[TopicPartition, int]
    replicas: Mapping[TopicPartition, HeldReplica]


class AcceptedAct(NamedTuple):
    """A command of a broker about partitions that was accepted at a revision."""

    who: str
    what: str
    revision: int
    stamp: BrokerStamp
    partitions: tuple[TopicPartition, ...]


class BrokerActs:
    """What all brokers of a run did."""

    def __init__(self, schedule: WorldSchedule, book: BrokerBook) -> None:
        self.looks: list[BrokerLook] = []
        self.accepted: list[AcceptedAct] = []
        self.refused: Counter[str] = Counter()
        """How many reports were refused, by broker."""
        self.signs_ns: dict[Tenancy, int] = {}
        """When the last sign of life of each epoch was sent that was answered."""
        self.resigned: set[Tenancy] = set()
        self.violations: list[str] = []
        self._schedule = schedule
        self._book = book
        self._last: dict[str, BrokerLook] = {}

    def look(self, who: str, session: BrokerSession) -> None:
        """Note what a session says now, if that differs from the last time."""
        tenancy = session.broker_id, session.broker_epoch
        look = BrokerLook(
            who, tenancy[0], session.stamp.seen_revision, session.leads, session.replicas
        )
        over_ns = self._book.fenced_ns.get(tenancy)
        if look.leads and over_ns is not None:
            self.violations.append(
                f"broker {who} led partitions at {self._schedule.now_ns} ns, {len(look.leads)} of"
                f" them, and its epoch {tenancy[1]} was over at {over_ns} ns"
            )
        last = self._last.get(who)
        if last is not None and (last.revision, last.leads) == (look.revision, look.leads):
            return
        self._last[who] = look = look._replace(replicas=dict(look.replicas))
        self.looks.append(look)
        for broker in session.brokers.values():
            if broker.fenced:
                self._book.saw_fenced(broker.id, broker.broker_epoch)

    def asked(self, request: Message) -> None:
        """Note that a broker is about to ask for something."""
        if isinstance(request, api.ResignBrokerRequest):
            self.resigned.add((request.broker.broker_id, request.broker.broker_epoch))

    def told(self, who: str, request: Message, answer: Any, sent_ns: int) -> None:
        """Note that a broker's request was granted, which it sent at that time."""
        if isinstance(request, api.KeepAliveBrokerRequest):
            self._sign((request.broker.broker_id, request.broker.broker_epoch), sent_ns)
        elif isinstance(request, api.RegisterBrokerRequest):
            self._sign((answer.broker_id, answer.broker_epoch), sent_ns)
        elif isinstance(request, api.UpdateInSyncRequest):
            numbers = [each.partition for each in request.partitions]
            self._accept(who, "change of who is in sync", request, numbers, answer)
        elif isinstance(request, streams_api.ReportPartitionEndsRequest):
            numbers = [each.partition for each in request.end_offsets]
            self._accept(who, "report", request, numbers, answer)

    def _sign(self, tenancy: Tenancy, sent_ns: int) -> None:
        self.signs_ns[tenancy] = max(sent_ns, self.signs_ns.get(tenancy, 0))

    def _accept(self, who: str, what: str, request: Any, numbers: list[int], answer: Any) -> None:
        ids = request.stream.id, request.topic.id
        partitions = tuple(TopicPartition(*ids, number) for number in numbers)
        revision = answer.header.revision
        self.accepted.append(AcceptedAct(who, what, revision, request.broker, partitions))


class OverheardClient:
    """The client of one broker: what it asks, and is told, becomes evidence."""

    def __init__(self, who: str, client: Client, acts: BrokerActs, schedule: WorldSchedule) -> None:
        self._who = who
        self._client = client
        self._acts = acts
        self._schedule = schedule

    async def call(self, request: Message, **options: Any) -> Any:
        """Call as the client does, and raise what it raises."""
        sent_ns = self._schedule.now_ns
        self._acts.asked(request)
        answer = await self._client.call(request, **options)
        self._acts.told(self._who, request, answer, sent_ns)
        return answer

    def watch(self, **options: Any) -> Watch:
        """Return a watch, as the client does."""
        return self._client.watch(**options)
