"""Callers that only read: one place of a given replica, or several places at one revision."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Final

import grpc.aio

from coordinator.gateway.forwarding import FORWARDED_KEY
from coordinator.gateway.reads import AT_LEAST_PREFIX, CONSISTENCY_KEY
from testkit.oracles.transactions import Transaction, TransactionOutcome
from testkit.torture.keys import KeyPlace, read_of, seen_in
from testkit.torture.recorder import Recorder, now_ns
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.client.consistency import LINEARIZABLE, STALE, Consistency, at_least
from viewstamp.client.errors import ClientError
from viewstamp.client.link import open_stream
from viewstamp.client.methods import method_of
from viewstamp.client.packing import encode, read_results, spans_of
from viewstamp.client.transport import (
    AccessTokenSource,
    Endpoint,
    Endpoints,
    Metadata,
    bearer,
    refusal_in,
)
from viewstamp.client.verdicts import PRIMARY_DETAIL, RetryVerdict, verdict_on
from viewstamp.errors import Refusal

PLACES_MAX: Final = 5
# A read has 5 s; a replica that says nothing for longer is away.
ANSWER_TIMEOUT_S: Final = 7.0
# Once nothing is hurt any more.
READ_ALL_TIMEOUT_S: Final = 90.0
PAUSE_S: Final = 0.1
BETWEEN_READS_S: Final = 0.01
# On a replica that is behind, an entity may not exist yet.
NOT_THERE_YET: Final = frozenset(
    {
        Reason.REASON_USER_NOT_FOUND,
        Reason.REASON_STREAM_NOT_FOUND,
        Reason.REASON_TOPIC_NOT_FOUND,
    }
)
BROKEN: Final = (grpc.aio.AioRpcError, asyncio.InvalidStateError, ClientError, TimeoutError)


class PlaceReader(ABC):
    """Reads until it is over, and records each answer."""

    def __init__(
        self,
        name: str,
        identity: AccessTokenSource,
        places: Sequence[KeyPlace],
        recorder: Recorder,
        seed: str,
    ) -> None:
        self.is_over = False
        self._name = name
        self._identity = identity
        self._places = places
        self._recorder = recorder
        self._random = random.Random(seed)
        self._reads = 0

    async def run(self) -> None:
        """Read over as many connections as it takes."""
        while not self.is_over:
            try:
                await self._serve()
            except Refusal as refusal:
                self._judge(refusal, LINEARIZABLE)
            except BROKEN as error:
                self._recorder.counts[f"connection of a reader ended: {type(error).__name__}"] += 1
            await asyncio.sleep(PAUSE_S)

    @abstractmethod
    async def read_all(self) -> None:
        """Read every place as it is now. Raises Refusal, and what a broken connection raises."""

    @abstractmethod
    async def _serve(self) -> None:
        """Read over one connection, until it ends or all is over."""

    def _level(self) -> Consistency:
        number = self._random.randrange(10)
        if number == 0:
            return STALE
        if number <= 2 and self._recorder.revision:
            return at_least(self._recorder.revision)
        return LINEARIZABLE

    def _record(
        self, called_at: int, level: Consistency, places: Sequence[KeyPlace], answers: Sequence[Any]
    ) -> None:
        """Keep an answer that has just come."""
        reads, lists = seen_in(zip(places, answers, strict=True))
        transaction = Transaction(
            name=f"{self._name}, read {self._reads}",
            called_at=called_at,
            returned_at=now_ns(),
            outcome=TransactionOutcome.COMMITTED,
            revision=answers[0].header.revision,
            reads=reads,
            lists=lists,
            is_current=level.linearizable,
            at_least=level.at_least_revision,
        )
        kind = "linearizable" if level.linearizable else "stale"
        if level.at_least_revision:
            kind = "at least at a revision"
        self._recorder.add(transaction, f"read of {self._kind()}, {kind}")

    @abstractmethod
    def _kind(self) -> str:
        """Return what figures call these reads."""

    def _judge(self, refusal: Refusal, level: Consistency) -> None:
        """A read is refused for good only by a replica that has not heard of a place yet."""
        self._recorder.counts[f"read refused: {refusal.name}"] += 1
        is_behind = not level.linearizable and refusal.reason in NOT_THERE_YET
        is_late = refusal.reason == Reason.REASON_READ_DEADLINE
        if verdict_on(refusal) is RetryVerdict.FINAL and not is_behind and not is_late:
            self._recorder.surprise(f"{self._name}, read {self._reads}: {refusal}")


class ReplicaReader(PlaceReader):
    """Reads one place at a time, of one replica, which must answer itself."""

    def __init__(self, address: str, *others: Any) -> None:
        super().__init__(*others)
        self._endpoint = Endpoint(address)

    async def read_all(self) -> None:
        """Read every place in turn, however often the view changes. Raises TimeoutError."""
        async with asyncio.timeout(READ_ALL_TIMEOUT_S), self._endpoint.open() as channel:
            for place in self._places:
                await self._read_at_last(channel, place)

    async def _read_at_last(self, channel: grpc.aio.Channel, place: KeyPlace) -> None:
        while True:
            try:
                return await self._read(channel, place, LINEARIZABLE)
            except Refusal as refusal:
                if verdict_on(refusal) is RetryVerdict.FINAL:
                    raise
            await asyncio.sleep(PAUSE_S)

    def _kind(self) -> str:
        return "one place of one replica"

    async def _serve(self) -> None:
        async with self._endpoint.open() as channel:
            while not self.is_over:
                level = self._level()
                try:
                    await self._read(channel, self._random.choice(self._places), level)
                except Refusal as refusal:
                    self._judge(refusal, level)
                    await asyncio.sleep(PAUSE_S)
                await asyncio.sleep(BETWEEN_READS_S)

    async def _read(self, channel: grpc.aio.Channel, place: KeyPlace, level: Consistency) -> None:
        self._reads += 1
        request = read_of(place)
        method = method_of(request)
        stub: Any = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        token = await self._identity.access_token(channel)
        called_at = now_ns()
        try:
            answer = await stub(request, metadata=_metadata(token, level), timeout=ANSWER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            refusal = refusal_in(error)
            if refusal is None:
                raise
            raise refusal from error
        self._record(called_at, level, [place], [answer])


class TogetherReader(PlaceReader):
    """Reads several places at one revision, of whichever replica leads."""

    def __init__(self, addresses: Sequence[str], *others: Any) -> None:
        super().__init__(*others)
        self._endpoints = Endpoints(addresses)

    async def read_all(self) -> None:
        """Read every place at one revision, once a replica leads."""
        while True:
            try:
                async with self._endpoints.current.open() as channel:
                    await self._read(await self._opened(channel), self._places, LINEARIZABLE)
                    return
            except Refusal as refusal:
                if verdict_on(refusal) is RetryVerdict.FINAL:
                    raise
                self._endpoints.advance(refusal.details.get(PRIMARY_DETAIL))
            except grpc.aio.AioRpcError as error:
                self._look_elsewhere(error)
            await asyncio.sleep(PAUSE_S)

    def _kind(self) -> str:
        return "several places"

    async def _serve(self) -> None:
        try:
            async with self._endpoints.current.open() as channel:
                stream = await self._opened(channel)
                self._endpoints.reached()
                while not self.is_over:
                    await self._read_some(stream)
        except grpc.aio.AioRpcError as error:
            self._look_elsewhere(error)
            raise
        except BROKEN:
            self._endpoints.advance()
            raise

    def _look_elsewhere(self, error: grpc.aio.AioRpcError) -> None:
        refusal = refusal_in(error)
        self._endpoints.advance(refusal.details.get(PRIMARY_DETAIL) if refusal else None)

    async def _opened(self, channel: grpc.aio.Channel) -> Any:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            token = await self._identity.access_token(channel)
            stream, _ = await open_stream(channel, token, 0)
            return stream

    async def _read_some(self, stream: Any) -> None:
        places = self._random.sample(self._places, self._random.randint(2, PLACES_MAX))
        level = self._level()
        try:
            await self._read(stream, places, level)
        except Refusal as refusal:
            self._judge(refusal, level)
            await asyncio.sleep(PAUSE_S)
        await asyncio.sleep(BETWEEN_READS_S)

    async def _read(self, stream: Any, places: Sequence[KeyPlace], level: Consistency) -> None:
        """Ask for places at one revision, and keep the answer. Raises Refusal."""
        self._reads += 1
        requests = [read_of(place) for place in places]
        spans, methods = spans_of((method_of(one), encode(method_of(one), one)) for one in requests)
        read = submit_pb2.ReadRequest(
            read_id=self._reads, consistency=level.to_proto(), spans=spans
        )
        called_at = now_ns()
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await stream.write(submit_pb2.SubmitRequest(read=read))
            answer = await stream.read()
        if answer is grpc.aio.EOF:
            raise TimeoutError("the stream has ended")
        if answer.read.HasField("error"):
            raise Refusal.from_error(answer.read.error)
        results = read_results(methods, spans, answer.read.header, answer.read.spans)
        refused = [result for result in results if isinstance(result, Refusal)]
        if refused:
            raise refused[0]
        self._record(called_at, level, places, results)


def _metadata(token: str, level: Consistency) -> Metadata:
    """Return what demands a level, and that the replica forwards the call to no other one."""
    wanted = "linearizable" if level.linearizable else "stale"
    if level.at_least_revision:
        wanted = f"{AT_LEAST_PREFIX}{level.at_least_revision}"
    return (*bearer(token), (CONSISTENCY_KEY, wanted), (FORWARDED_KEY, "1"))
