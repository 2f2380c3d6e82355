"""A gateway with a feed of changes: real gRPC, a history that tests write, an ending per call.

As a program (`python -m tests.viewstamp.client.fake_feed`) it prints its port, serves a short
history, and adds to it the streams that are created.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from tests.viewstamp.client.fake_domain import Domain
from tests.viewstamp.client.fake_gateway import CLUSTER_ID, FakeGateway
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_pb2, streams_service_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.client.watch_calls import WATCH_PATH
from viewstamp.errors import Refusal
from viewstamp.routing import Method
from viewstamp.status import grpc_code, trailing_details

CREATED = watch_pb2.CHANGE_KIND_CREATED
UPDATED = watch_pb2.CHANGE_KIND_UPDATED
DELETED = watch_pb2.CHANGE_KIND_DELETED


@dataclass(frozen=True)
class Ending:
    """How a call ends: after so many messages, by a refusal, a break (None) or in silence."""

    after: int
    refusal: Refusal | None = None
    is_silent: bool = False


def change_of(
    revision: int, entity: Message, kind: watch_pb2.ChangeKind.ValueType = CREATED
) -> watch_pb2.Change:
    """Return a change of an entity of the streams, which has the id `id`."""
    entity_id = entity.id  # type: ignore[attr-defined]
    return watch_pb2.Change(
        revision=revision,
        domain=routing_pb2.STAGE_STREAMS,
        kind=kind,
        entity_type=entity.DESCRIPTOR.full_name,
        entity=entity.SerializeToString(),
        key=entity_id.to_bytes(8, "big"),
        stream_id=entity_id,
    )


def stream_change(
    revision: int,
    stream_id: int,
    kind: watch_pb2.ChangeKind.ValueType = CREATED,
    name: str = "",
) -> watch_pb2.Change:
    """Return a change of a stream."""
    stream = streams_pb2.Stream(
        id=stream_id, name=name or f"s{stream_id}", modified_revision=revision
    )
    return change_of(revision, stream, kind)


class FakeFeed(FakeGateway):
    """Serves `history` from any revision on. Tests look at `asked`, and set the faults.

    `part_size` is the number of changes of a message. `endings` are those of the next calls;
    `refuse_watches` refuses a call. `cluster_id` is in the headers of watches, `listed_cluster_id`
    in those of other answers, `oldest` is the first revision
    that is kept.
    """

    def __init__(self, **options: Any) -> None:
        """Begin with an empty feed at revision 0."""
        super().__init__(**options)
        self.history: list[watch_pb2.Change] = []
        self.head = 0
        self.oldest = 1
        self.part_size = 1
        self.endings: list[Ending] = []
        self.refuse_watches: Callable[[watch_pb2.WatchRequest], Refusal | None] = lambda _: None
        self.cluster_id = self.listed_cluster_id = CLUSTER_ID
        self.asked: list[watch_pb2.WatchRequest] = []
        self.open_watches = 0
        self._grown = asyncio.Event()
        self._broken = 0

    async def __aenter__(self) -> FakeFeed:
        await super().__aenter__()
        return self

    def commit(self, *changes: watch_pb2.Change, head: int = 0) -> None:
        """Add changes; the feed is then complete up to the last one, or to `head`."""
        self.history += changes
        self.head = max([head, self.head, *(change.revision for change in changes)])
        self.revision = max(self.revision, self.head)
        self._grown.set()
        self._grown = asyncio.Event()

    def end_watches(self) -> None:
        """Break every open watch."""
        self._broken += 1
        self._grown.set()
        self._grown = asyncio.Event()

    def handler(self, path: str) -> Any:
        """Return the handler of a method, also of watches."""
        if path == WATCH_PATH:
            return grpc.unary_stream_rpc_method_handler(
                self._watch,
                request_deserializer=watch_pb2.WatchRequest.FromString,
                response_serializer=watch_pb2.WatchResponse.SerializeToString,
            )
        return super().handler(path)

    async def _watch(self, request: watch_pb2.WatchRequest, context: Any) -> None:
        self.asked.append(request)
        self.open_watches += 1
        self._progress.set()
        try:
            self._check(request, context)
            ending = self.endings.pop(0) if self.endings else None
            await self._serve_changes(request, context, ending)
        except Refusal as refusal:
            details = (trailing_details(refusal),)
            await context.abort(grpc_code(refusal), refusal.message, trailing_metadata=details)
        finally:
            self.open_watches -= 1
            self._progress.set()

    def _check(self, request: watch_pb2.WatchRequest, context: Any) -> None:
        refusal = self.refuse_watches(request)
        if refusal is not None:
            raise refusal
        if ("authorization", f"Bearer {self.valid_token}") not in context.invocation_metadata():
            raise Refusal(Reason.REASON_UNAUTHENTICATED, "the token is not valid: log in again")
        if 0 < request.from_revision < self.oldest:
            raise Refusal(
                Reason.REASON_REVISION_COMPACTED, "not kept: list again", oldest=self.oldest
            )

    async def _serve_changes(
        self, request: watch_pb2.WatchRequest, context: Any, ending: Ending | None
    ) -> None:
        complete = request.from_revision - 1 if request.from_revision else self.head
        sent, broken = 0, self._broken
        messages = [self._message(complete)]
        while True:
            for message in messages:
                await _end_after(sent, ending, context)
                await context.write(message)
                sent += 1
            await _end_after(sent, ending, context)
            grown = self._grown
            messages = list(self._messages(request, complete))
            complete = max(complete, self.head)
            if not messages:
                await grown.wait()
            if self._broken != broken:
                await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    def _messages(
        self, request: watch_pb2.WatchRequest, complete: int
    ) -> Iterator[watch_pb2.WatchResponse]:
        """Yield what is new, in parts; each header says what is complete with its message."""
        types = list(request.entity_types)
        news = [
            each
            for each in self.history
            if each.revision > complete and (not types or each.entity_type in types)
        ]
        for start in range(0, len(news), self.part_size):
            rest = news[start + self.part_size :]
            part = news[start : start + self.part_size]
            yield self._message(rest[0].revision - 1 if rest else self.head, part)
        if not news and self.head > complete:
            yield self._message(self.head)

    def _header(self, revision: int) -> common_pb2.ResponseHeader:
        return common_pb2.ResponseHeader(cluster_id=self.listed_cluster_id, revision=revision)

    def _message(
        self, revision: int, changes: Sequence[watch_pb2.Change] = ()
    ) -> watch_pb2.WatchResponse:
        header = common_pb2.ResponseHeader(cluster_id=self.cluster_id, revision=revision)
        return watch_pb2.WatchResponse(header=header, changes=changes)


async def _end_after(sent: int, ending: Ending | None, context: Any) -> None:
    if ending is None or sent < ending.after:
        return
    if ending.is_silent:
        await asyncio.Event().wait()
    if ending.refusal is not None:
        raise ending.refusal
    await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")


class _FedDomain(Domain):
    """Streams whose creation is in the feed."""

    def __init__(self, feed: FakeFeed) -> None:
        super().__init__()
        self._feed = feed
        self.next_id = 10

    def call(self, method: Method, encoded: bytes) -> tuple[Message, bytes]:
        """Answer a call, and tell of a stream that it created."""
        answer, suffix = super().call(method, encoded)
        if isinstance(answer, streams_service_pb2.CreateStreamResponse):
            name = self.requests[-1].name
            self._feed.commit(stream_change(self._feed.revision + 1, answer.stream_id, name=name))
        return answer, suffix


async def _main() -> None:
    async with FakeFeed() as feed:
        feed.domain = _FedDomain(feed)
        feed.commit(stream_change(2, 1), stream_change(2, 2), stream_change(5, 1, UPDATED, "new"))
        feed.commit(stream_change(6, 2, DELETED), head=7)
        print(feed.port, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
