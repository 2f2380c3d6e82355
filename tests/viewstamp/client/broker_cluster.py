"""A cluster for tests of brokers' sessions: they talk to the real state machine of streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from google.protobuf.message import Message

from tests.services.runtime.changes_reading import changes_of
from tests.services.streams.brokers_workbench import BrokersWorkbench, registration
from tests.services.streams.streams_workbench import METHODS
from viewstamp.api.brokers.v1 import brokers_service_pb2 as api
from viewstamp.api.common.v1.common_pb2 import ResponseHeader
from viewstamp.client.broker_session import BrokerSession, LeadsChange
from viewstamp.client.revisions import WatchedRevision
from viewstamp.client.watching import EntityType
from viewstamp.routing import MethodKind

PATIENCE_S = 10.0
CLUSTER_ID = b"cluster of tests"


class BrokersCluster:
    """Topics of orders (see `orders_bench`), and a clock that the test sets."""

    def __init__(self) -> None:
        self.work = BrokersWorkbench()
        self.now_s = 0.0
        self.has_grown = asyncio.Event()

    @property
    def revision(self) -> int:
        """The last revision."""
        return self.work.bench.revision

    def client(self) -> BrokerProgram:
        """Return a client."""
        return BrokerProgram(self)

    @asynccontextmanager
    async def session(
        self, name: str, client: BrokerProgram | None = None
    ) -> AsyncIterator[BrokerSession]:
        """Register a broker, and resign behind the block."""
        made = BrokerSession(
            client or self.client(), registration(name), clock_s=lambda: self.now_s
        )
        async with made:
            yield made

    def show(self) -> None:
        """Let all watches see what the test did."""
        self.has_grown.set()
        self.has_grown = asyncio.Event()

    def fence(self, session: BrokerSession) -> None:
        """Fence a broker, as the primary does with one that was silent."""
        request = api.FenceBrokerRequest(
            broker_id=session.broker_id, broker_epoch=session.broker_epoch
        )
        self.work.bench.command("FenceBroker", request)
        self.show()


class BrokerProgram:
    """Sends requests, unless `failure` has something to raise; notes what was sent."""

    def __init__(self, cluster: BrokersCluster) -> None:
        self.failure: Callable[[Message], None] = lambda request: None
        self.sent: list[str] = []
        self.is_watching = True
        self.watch_failure: Exception | None = None
        self.cluster = cluster

    async def call(self, request: Message, **_: Any) -> Any:
        """Answer by the state machine. Raises Refusal, and what the test wants."""
        await asyncio.sleep(0)
        self.failure(request)
        name = type(request).__name__.removesuffix("Request")
        self.sent.append(name)
        answer = self.cluster.work.bench.ask(name, request)
        answer.header.CopyFrom(
            ResponseHeader(cluster_id=CLUSTER_ID, revision=self.cluster.revision)
        )
        if METHODS[name].kind is MethodKind.COMMAND:
            self.cluster.show()
        return answer

    def watch(
        self, *, from_revision: int = 0, entity_types: Iterable[EntityType] = (), **_: Any
    ) -> Any:
        """Return a watch of the machine's changes."""
        return MachineWatch(self, from_revision - 1, frozenset(entity_types))


class MachineWatch:
    """Shows the changes of the machine, while the program is watching."""

    def __init__(
        self, program: BrokerProgram, revision: int, entity_types: frozenset[EntityType]
    ) -> None:
        self.revision = revision
        self.cluster_id = CLUSTER_ID
        self._program = program
        self._types = entity_types

    async def __aenter__(self) -> MachineWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def come_to(self, revision: int) -> list[WatchedRevision]:
        """Wait for a revision, and return the next one that changed something of the types."""
        cluster = self._program.cluster
        while not self._program.is_watching or cluster.revision < revision:
            await cluster.has_grown.wait()
        if self._program.watch_failure is not None:
            raise self._program.watch_failure
        machine = cluster.work.bench.machine
        found = [
            each
            for each in changes_of(machine, from_revision=self.revision + 1)
            if each.entity_type in self._types
        ]
        if not found:
            self.revision = cluster.revision
            return []
        self.revision = found[0].revision
        whole = tuple(each for each in found if each.revision == self.revision)
        return [WatchedRevision(self.revision, whole)]


async def change_of(session: BrokerSession) -> LeadsChange:
    """Return the next change, which must come soon."""
    async with asyncio.timeout(PATIENCE_S):
        return await anext(session)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something holds, which must be soon."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)
