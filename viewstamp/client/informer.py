"""`client.informer`: a local, consistent cache of entities, with handlers, as controllers need.

It lists all entities, then watches from behind the revision of the first page, and shows nothing
before it has come to one revision; `viewstamp.client.entity_lists` says why that is right. When the
cluster does not keep its place any more, it lists again, and tells the differences alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeAlias

from google.protobuf.message import Message

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.cancellation import end_if_cancelled
from viewstamp.client.entity_cache import (
    ABSENT,
    EntityCache,
    EntityEvent,
    EntityKey,
    EntityTables,
    IndexFunction,
    full_name_of,
)
from viewstamp.client.entity_lists import LISTED_TYPES, EntityLists, ListedType
from viewstamp.client.errors import CannotConnect, ClientClosed, ProtocolError, TimedOut
from viewstamp.client.identifiers import FacadeClient
from viewstamp.client.revisions import WatchedRevision
from viewstamp.client.verdicts import ELSEWHERE, Backoff, RetryVerdict, verdict_on
from viewstamp.client.watch_names import with_ids
from viewstamp.client.watching import EntityType, Watch, decoded, watch_request
from viewstamp.errors import Refusal

logger = logging.getLogger(__name__)

# A handler may be a coroutine function; the next event waits for it.
AddedHandler: TypeAlias = Callable[[Any], Awaitable[None] | None]
UpdatedHandler: TypeAlias = Callable[[Any, Any], Awaitable[None] | None]
FailureHandler: TypeAlias = Callable[[Exception, EntityEvent], object]

# List again: the place is lost, or the cluster could not answer for a while.
_LIST_AGAIN: Final = frozenset({Reason.REASON_REVISION_COMPACTED, Reason.REASON_READ_DEADLINE})
_FOR_NOW: Final = ELSEWHERE | {RetryVerdict.ENDED}
# What the informer is about has been deleted, and everything in it.
_GONE: Final = frozenset({Reason.REASON_STREAM_NOT_FOUND, Reason.REASON_TOPIC_NOT_FOUND})


class InformedClient(FacadeClient, Protocol):
    """What an informer needs of a client."""

    def watch(
        self,
        *,
        from_revision: int = ...,
        stream: int | str | None = ...,
        topic: int | str | None = ...,
        entity_types: Iterable[EntityType] = ...,
    ) -> Watch:
        """Return a watch."""


@dataclass(frozen=True, slots=True)
class _Handlers:
    added: AddedHandler | None
    updated: UpdatedHandler | None
    deleted: AddedHandler | None
    failed: FailureHandler | None

    async def handle(self, event: EntityEvent) -> None:
        """Call the handler of an event; report what it raises."""
        try:
            result = self._begun(event)
            if isawaitable(result):
                await result
        # The handler is the program's own: whatever it raises, the cache has to go on.
        except Exception as error:
            if self.failed is None:
                logger.exception("a handler failed at %s %s", event.entity_type, event.key)
            else:
                self.failed(error, event)

    def _begun(self, event: EntityEvent) -> Awaitable[None] | None:
        if event.old is ABSENT:
            return None if self.added is None else self.added(event.new)
        if event.new is ABSENT:
            return None if self.deleted is None else self.deleted(event.old)
        return None if self.updated is None else self.updated(event.old, event.new)


class Informer:
    """A cache of all entities of some types at one revision; made by `Client.informer`.

    Use it as `async with client.informer(Topic) as topics`, add handlers and indexes before, and
    `await topics.synced()`. The cache holds the public messages, without the fields that other
    entities decide (the counts of a stream, a group and a broker, the state and members of a group,
    the leaders of placements). Whoever takes a message out must not change it. All changes of a
    revision are in the cache before the first handler hears of them.
    """

    def __init__(
        self,
        client: InformedClient,
        entity_types: Sequence[type[Message]],
        *,
        stream: int | str | None = None,
        topic: int | str | None = None,
    ) -> None:
        """Hold some types, of a stream or topic. Raises ValueError for what cannot be held."""
        self._client = client
        self._types = _listed_types(entity_types, stream, topic)
        self._request = watch_request(stream=stream, topic=topic, entity_types=entity_types)
        self._cache = EntityCache([full_name_of(each.message) for each in self._types])
        self._handlers: list[_Handlers] = []
        self._revision = 0
        self._is_synced = False
        self._cluster_id = b""
        self._progress = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Informer:
        """Begin, without waiting for the cluster."""
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @property
    def revision(self) -> int:
        """The revision at which the cache is; 0 before it is synced."""
        return self._revision

    def on_change(
        self,
        *,
        added: AddedHandler | None = None,
        updated: UpdatedHandler | None = None,
        deleted: AddedHandler | None = None,
        failed: FailureHandler | None = None,
    ) -> None:
        """Call `added(new)`, `updated(old, new)`, `deleted(old)`, in order, one after the other.

        What a handler raises goes to `failed(error, event)`, or into the log; the next event comes
        all the same. Everything that is there at the beginning is added.
        """
        self._handlers.append(_Handlers(added, updated, deleted, failed))

    def add_index(self, name: str, entity_type: type[Message], values_of: IndexFunction) -> None:
        """Find entities by the values that `values_of` returns for them; see `by_index`."""
        self._cache.add_index(name, full_name_of(entity_type), values_of)

    def get(self, entity_type: type[Message], *key: int) -> Any:
        """Return an entity by its ids, or None. A topic has two: those of its stream and its own.

        Placements have those of stream and topic, and the number of their row of 128 partitions.
        Raises ValueError for a type that is not held.
        """
        return self._cache.get(full_name_of(entity_type), key)

    def all(self, entity_type: type[Message]) -> list[Any]:
        """Return all entities of a type, by their ids. Raises ValueError."""
        return self._cache.all(full_name_of(entity_type))

    def by_index(self, name: str, value: Hashable) -> list[Any]:
        """Return the entities that an index has under a value, by their ids. Raises KeyError."""
        return self._cache.by_index(name, value)

    async def synced(self) -> None:
        """Wait for the first complete cache; see `come_to` for the errors."""
        while not self._is_synced:
            await self._progressed()

    async def come_to(self, revision: int) -> None:
        """Wait until the cache has what a revision changed, for example one of the caller.

        The cluster tells every five seconds of revisions that changed nothing here. Raises what
        ended the informer: Refusal, ProtocolError, RevisionTooLarge, ClientClosed.
        """
        while self._revision < revision:
            await self._progressed()

    async def ended(self) -> None:
        """Wait for the end, and raise what ended it. See `come_to`."""
        while True:
            await self._progressed()

    async def _progressed(self) -> None:
        if self._task is None or self._task.done():
            if self._task is not None and not self._task.cancelled():
                self._task.result()
            raise ClientClosed("the informer does not run: use it within `async with`")
        self._progress.clear()
        await self._progress.wait()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._progress.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("the informer has ended: %s", error)

    # --- The task ---

    async def _run(self) -> None:
        """Keep the cache for ever. Raises what is final."""
        backoff = Backoff()
        while True:
            end_if_cancelled()
            try:
                await self._follow(backoff)
            except (TimedOut, CannotConnect) as error:
                logger.info("the informer lists again: %s", error)
            except Refusal as refusal:
                await self._check_final(refusal)
                logger.info("the informer lists again: %s", refusal)
            await asyncio.sleep(backoff.next_s())

    async def _check_final(self, refusal: Refusal) -> None:
        """Raise a refusal that listing again does not help against."""
        if refusal.reason in _GONE and self._is_synced:
            await self._tell(self._cache.replace({}))
        if refusal.reason not in _LIST_AGAIN and verdict_on(refusal) not in _FOR_NOW:
            raise refusal

    async def _follow(self, backoff: Backoff) -> None:
        """List, then watch until the watch ends. Raises Refusal, ClientError."""
        # A name may mean another entity tomorrow, and an id never does.
        self._request = request = await with_ids(self._client, self._request)
        stream = request.stream if request.HasField("stream") else None
        topic = request.topic if request.HasField("topic") else None
        lists = EntityLists(self._client, stream, topic)
        tables = await lists.tables(self._types)
        self._check_cluster(lists.cluster_id)
        watch = self._client.watch(
            from_revision=lists.first_revision + 1,
            stream=None if stream is None else stream.id,
            topic=None if topic is None else topic.id,
            entity_types=request.entity_types,
        )
        async with watch:
            self._check_cluster(watch.cluster_id)
            await self._begin(tables, watch, lists.last_revision)
            while True:
                for revision in await watch.come_to(watch.revision + 1):
                    await self._take(revision)
                self._come_to(watch.revision)
                backoff.reset()

    async def _begin(self, tables: EntityTables, watch: Watch, revision: int) -> None:
        """Have the watch bring what was listed to one revision, and take it over."""
        while watch.revision < revision:
            for each in await watch.come_to(revision):
                for name, key, entity in map(_applied, each.changes):
                    tables[name].pop(key, None)
                    if entity is not ABSENT:
                        tables[name][key] = entity
        events = self._cache.replace(tables)
        self._come_to(watch.revision)
        self._is_synced = True
        await self._tell(events)

    async def _take(self, revision: WatchedRevision) -> None:
        events = [self._cache.put(*_applied(change)) for change in revision.changes]
        self._come_to(revision.revision)
        await self._tell([event for event in events if event is not None])

    def _come_to(self, revision: int) -> None:
        self._revision = revision
        self._progress.set()

    async def _tell(self, events: Sequence[EntityEvent]) -> None:
        for event in events:
            for handlers in self._handlers:
                await handlers.handle(event)

    def _check_cluster(self, cluster_id: bytes) -> None:
        if self._cluster_id not in (b"", cluster_id):
            raise ProtocolError("another cluster answers than the one that is in the cache")
        self._cluster_id = cluster_id


def _applied(change: watch_pb2.Change) -> tuple[str, EntityKey, Any]:
    """Return type, key, and the entity after a change; None if it is gone."""
    entity = decoded(change)
    key = LISTED_TYPES[change.entity_type].key(entity)
    is_gone = change.kind == watch_pb2.CHANGE_KIND_DELETED
    return change.entity_type, key, ABSENT if is_gone else entity


def _listed_types(
    entity_types: Sequence[type[Message]], stream: int | str | None, topic: int | str | None
) -> list[ListedType]:
    """Return how the types are listed. Raises ValueError for what cannot be held together."""
    if not entity_types:
        raise ValueError(f"name at least one of the types {', '.join(LISTED_TYPES)}")
    if topic is not None and stream is None:
        raise ValueError("a topic needs its stream: name both")
    found = []
    for name in map(full_name_of, entity_types):
        each = LISTED_TYPES.get(name)
        if each is None:
            raise ValueError(f"{name} cannot be held: choose of {', '.join(LISTED_TYPES)}")
        if (stream is not None and not each.in_stream) or (topic is not None and not each.in_topic):
            raise ValueError(f"{name} is not in a {'stream' if topic is None else 'topic'}")
        found.append(each)
    return found
