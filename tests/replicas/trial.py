"""Load on a cluster of several replicas while it is hurt, and checks of what callers saw.

Every caller creates, deletes and reads topics out of a small set, so that they meet. The trial
records each operation with its times, and checks all twice: by the cluster's revisions, and by a
search that does not use them.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import grpc.aio
from google.protobuf.message import Message

from testkit.oracles import wing_gong, witness
from testkit.oracles.history import Operation, SequentialModel, by_key
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1 import streams_service_pb2 as streams_pb2
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.client import Client, Endpoint, connect
from viewstamp.client import unary as client_unary
from viewstamp.client.errors import ClientError
from viewstamp.client.identifiers import identifier
from viewstamp.client.methods import method_of
from viewstamp.client.transport import bearer
from viewstamp.cluster import LocalReplicas, Program
from viewstamp.errors import Refusal

STREAM: Final = "trial"
KEYS: Final = tuple(f"topic-{number}" for number in range(12))
SETTLE_TIMEOUT_S: Final = 60.0
CALL_TIMEOUT_S: Final = 60.0
READS: Final = frozenset({"read"})


def step(exists: bool, operation: Operation) -> tuple[object, bool]:
    """One topic: the answer to each operation, and whether the topic exists after it."""
    if operation.kind == "create":
        return (not exists), True
    if operation.kind == "delete":
        return exists, False
    return exists, exists


TOPIC: Final[SequentialModel[bool]] = SequentialModel(False, step)


@dataclass(slots=True)
class ReplicasTrial:
    """A cluster under load."""

    replicas: LocalReplicas
    clients: list[Client]
    history: list[tuple[str, Operation]] = field(default_factory=list)
    answered: int = 0
    is_over: bool = False
    _progress: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def admin(self) -> Client:
        """A client outside the load."""
        return self.clients[0]

    async def primary(self) -> int:
        """Return the present primary."""
        return (await self.admin.status()).primary

    async def until_answered(self, count: int) -> None:
        """Wait until so many further operations were answered."""
        wanted = self.answered + count
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while self.answered < wanted:
                self._progress.clear()
                await self._progress.wait()

    async def load(self, caller: int, seed: int) -> None:
        """Send one operation after another, until the trial is over."""
        chosen = random.Random(seed)
        client = self.clients[caller]
        while not self.is_over:
            key = chosen.choice(KEYS)
            kind = chosen.choice(("create", "delete", "read", "read"))
            called_at = time.monotonic_ns()
            try:
                output, revision = await call(client, kind, key)
            except ClientError:
                self.history.append((key, Operation(caller, kind, key, called_at)))
                return  # its outcome is open: another caller goes on
            returned_at = time.monotonic_ns()
            operation = Operation(caller, kind, key, called_at, returned_at, output, revision)
            self.history.append((key, operation))
            self.answered += 1
            self._progress.set()

    def violations(self) -> list[str]:
        """Return the faults in what the callers saw."""
        found = []
        for key, operations in sorted(by_key(self.history).items()):
            found += [
                f"{key}: {text}" for text in witness.violations(operations, TOPIC, reads=READS)
            ]
            if wing_gong.linearization(operations, TOPIC) is None:
                found.append(f"{key}: no order explains {len(operations)} operations")
        return found

    async def statuses(self, without: Collection[int] = ()) -> list[cluster_pb2.GetStatusResponse]:
        """Return the status of each replica, digests included."""
        answers = []
        for replica, address in enumerate(self.replicas.addresses):
            if replica not in without:
                answers.append(await status_of(address, self.replicas))
        return answers

    async def settled(self, without: Collection[int] = ()) -> list[cluster_pb2.GetStatusResponse]:
        """Wait until all replicas have applied the same op, and return their statuses."""
        async with asyncio.timeout(SETTLE_TIMEOUT_S):
            while True:
                # A replica that got a snapshot restarts once more, after it was ready; the
                # admission of one that lost its disk changes the view.
                with suppress(grpc.aio.AioRpcError, Refusal):
                    statuses = await self.statuses(without)
                    if len({each.header.op for each in statuses}) == 1:
                        return statuses
                await asyncio.sleep(0.2)


async def agree(made: ReplicasTrial, without: Collection[int] = ()) -> None:
    """All replicas have applied the same op, and have the same digests there."""
    statuses = await made.settled(without)
    assert len({digests(status) for status in statuses}) == 1
    assert made.violations() == []


async def lead(made: ReplicasTrial, replica: int, *, leads: bool) -> None:
    """Ask for step-downs until the replica leads, or until it does not."""
    async with asyncio.timeout(SETTLE_TIMEOUT_S):
        while (await made.primary() == replica) is not leads:
            await made.admin.step_down()


def digests(status: cluster_pb2.GetStatusResponse) -> tuple[str, ...]:
    """Return the state digests of all stages of one replica."""
    return (*(service.state_digest for service in status.services), status.sessions_digest)


async def status_of(address: str, replicas: LocalReplicas) -> cluster_pb2.GetStatusResponse:
    """Ask one replica for its status; it must answer itself."""
    request = cluster_pb2.GetStatusRequest(include_digests=True)
    status: cluster_pb2.GetStatusResponse = await unary(replicas, address, request, stale=True)
    return status


async def unary(replicas: LocalReplicas, address: str, request: Any, *, stale: bool = False) -> Any:
    """Call one replica as any gRPC client would, as root."""
    method = method_of(request)
    async with Endpoint(address).open() as channel:
        token = await token_of(replicas, channel)
        level = (("viewstamp-consistency", "stale"),) if stale else ()
        stub = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return await stub(request, metadata=(*bearer(token), *level), timeout=20)


async def token_of(replicas: LocalReplicas, channel: Any) -> str:
    """Log in as root."""
    password = replicas.root_password_path.read_text().strip()
    login = users_pb2.LoginRequest(username="root", password=password)
    return str((await client_unary(channel, login)).access_token)


async def call(client: Client, kind: str, key: str) -> tuple[bool, int | None]:
    """Return whether it was done, and at which revision; a refusal has none."""
    request, refused_by = _CALLS[kind]
    try:
        answer = await client.call(request(key))
    except Refusal as refusal:
        if refusal.reason != refused_by:
            raise
        return False, None
    return True, answer.header.revision


def _create(key: str) -> Message:
    return streams_pb2.CreateTopicRequest(stream=identifier(STREAM), name=key, partitions_count=1)


def _delete(key: str) -> Message:
    return streams_pb2.DeleteTopicRequest(stream=identifier(STREAM), topic=identifier(key))


def _read(key: str) -> Message:
    return streams_pb2.GetTopicRequest(stream=identifier(STREAM), topic=identifier(key))


# Requests, and the reason of a refusal that counts as a negative answer.
_CALLS: Final[dict[str, tuple[Callable[[str], Message], int]]] = {
    "create": (_create, Reason.REASON_TOPIC_EXISTS),
    "delete": (_delete, Reason.REASON_TOPIC_NOT_FOUND),
    "read": (_read, Reason.REASON_TOPIC_NOT_FOUND),
}


def on_transports(names: Sequence[str]) -> Callable[[int, Program], Program]:
    """Return what has the processes of each replica run on one of the transports, in turn."""

    def adapt(replica: int, program: Program) -> Program:
        return replace(
            program, command=(*program.command, "--transport", names[replica % len(names)])
        )

    return adapt


@asynccontextmanager
async def trial(
    directory: Path,
    count: int = 3,
    *,
    callers: int = 5,
    arguments: tuple[str, ...] = (),
    adapt: Callable[[int, Program], Program] = lambda _, program: program,
    standbys: int = 0,
) -> AsyncIterator[ReplicasTrial]:
    """Start replicas and callers; `adapt` may change the replicas' programs."""
    made = LocalReplicas(
        directory,
        count,
        "127.0.0.1:0",
        coordinator_arguments=arguments,
        adapt=adapt,
        standbys=standbys,
    )
    async with trial_of(made, callers=callers) as running:
        yield running


@asynccontextmanager
async def trial_of(cluster: LocalReplicas, *, callers: int = 5) -> AsyncIterator[ReplicasTrial]:
    """Start a cluster and its callers, which call during `under_load`."""
    async with cluster as replicas, AsyncExitStack() as stack:
        password = replicas.root_password_path.read_text().strip()
        clients = [
            await stack.enter_async_context(
                await connect(
                    replicas.addresses, username="root", password=password, timeout_s=CALL_TIMEOUT_S
                )
            )
            for _ in range(callers + 1)
        ]
        await clients[0].streams.create(STREAM)
        yield ReplicasTrial(replicas, clients)


@asynccontextmanager
async def under_load(made: ReplicasTrial) -> AsyncIterator[None]:
    """Let all callers call during the block; an error in one of them is raised."""
    made.is_over = False
    async with asyncio.TaskGroup() as group:
        for caller in range(1, len(made.clients)):
            group.create_task(made.load(caller, seed=caller))
        try:
            yield
        finally:
            made.is_over = True
