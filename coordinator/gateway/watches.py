"""Watch: calls answered by a stream of changes, for as long as their callers may see them.

A watch first reads the services from its revision on until it has caught up with the feed of this
replica, then it follows the feed. It keeps nothing but its place: a client that reads slowly falls
behind the feed, reads the services again, and is told when they do not keep its place any more.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final

import grpc.aio

from coordinator.base.decoded_requests import decoded_request
from coordinator.gateway.audit import Audit
from coordinator.gateway.change_feed import ChangeFeed, FeedFollower, encoded
from coordinator.gateway.change_pages import (
    ChangePages,
    ChangeReads,
    ChangesLostError,
    followed_streams,
)
from coordinator.gateway.kept_changes import CHANGES_AT_ONCE, FeedChange
from coordinator.gateway.principal import Authenticator, expired
from coordinator.gateway.shares import full, too_much
from coordinator.gateway.slow_readers import end_in_time, write_in_time
from coordinator.gateway.watch_filters import WatchFilter
from coordinator.gateway.watch_openings import Opened, WatchOpenings, compacted
from coordinator.gateway.watch_turns import WatchTurns
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import encode_varint, frame
from viewstamp.limits import (
    ANSWER_READING_TIMEOUT_MS,
    CATCH_UPS_MAX,
    CATCH_UPS_PER_USER_MAX,
    WATCH_MESSAGE_BYTES_MAX,
    WATCH_PROGRESS_MS,
    WATCHES_MAX,
    WATCHES_PER_USER_MAX,
)
from viewstamp.tokens import AccessToken

WATCH_PATH: Final = "/viewstamp.api.watch.v1.WatchService/Watch"
# The tag of `changes` in a WatchResponse.
_CHANGES_TAG: Final = b"\x12"
_METHOD: Final = WATCH_PATH[1:]

Context = grpc.aio.ServicerContext[Any, Any]


class Watches:
    """Serves all watches of this replica.

    `check_reading` raises Refusal unless reads are answered here.
    """

    def __init__(
        self,
        cluster_id: bytes,
        authenticator: Authenticator,
        openings: WatchOpenings,
        reads: ChangeReads,
        feed: ChangeFeed,
        check_reading: Callable[[], None],
        audit: Audit | None = None,
    ) -> None:
        self._audit = audit
        self._cluster_id = cluster_id
        self._authenticator = authenticator
        self._openings = openings
        self._reads = reads
        self._feed = feed
        self._check_reading = check_reading
        self._room = asyncio.Semaphore(CATCH_UPS_MAX)
        # By user: how many are open, and room for those that catch up.
        self._open: Counter[int] = Counter()
        self._rooms: defaultdict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(CATCH_UPS_PER_USER_MAX)
        )
        self._turns = WatchTurns()

    def handlers(self) -> Mapping[str, Any]:
        """Return the gRPC method handler by path."""

        async def serve(payload: bytes, context: Context) -> None:
            try:
                await self._serve(payload, context)
            except Refusal as refusal:
                await end_in_time(context, refusal)

        behavior: Callable[[bytes, Context], Awaitable[None]] = serve
        return {WATCH_PATH: grpc.unary_stream_rpc_method_handler(behavior)}

    async def _serve(self, payload: bytes, context: Context) -> None:
        request = decoded_request(watch_pb2.WatchRequest, payload)
        self._check_reading()
        principal = self._authenticator.principal(context.invocation_metadata() or ())
        with self._place(principal.user_id):
            opened = await self._opened(request, principal, context)
            watch = _Watch(
                self._cluster_id, request, opened, principal, self._feed, context, self._turns
            )
            try:
                async with asyncio.timeout(self._authenticator.seconds_left(principal)):
                    await watch.run(self._reads, lambda: self._catching_up(principal.user_id))
            except TimeoutError as error:
                raise expired() from error

    async def _opened(
        self, request: watch_pb2.WatchRequest, principal: AccessToken, context: Context
    ) -> Opened:
        try:
            return await self._openings.open(request, principal)
        except Refusal as refusal:
            if self._audit is not None:
                self._audit.denied(_METHOD, context, context.peer(), refusal)
            raise

    @asynccontextmanager
    async def _catching_up(self, user_id: int) -> AsyncIterator[None]:
        """Wait for room to read the services."""
        async with self._rooms[user_id], self._room:
            yield

    @contextmanager
    def _place(self, user_id: int) -> Iterator[None]:
        """Take one of the places for watches. Raises Refusal QUOTA_EXCEEDED."""
        held, in_all = self._open[user_id], self._open.total()
        if held >= WATCHES_PER_USER_MAX:
            raise too_much(user_id, "watches", held, WATCHES_PER_USER_MAX)
        if in_all >= WATCHES_MAX:
            raise full("watches", in_all, WATCHES_MAX)
        self._open[user_id] += 1
        try:
            yield
        finally:
            self._open[user_id] -= 1
            if not self._open[user_id]:
                del self._open[user_id]
                self._rooms.pop(user_id, None)


class _Watch:
    """One watch under way. `_complete` is the last revision of which it has sent everything.

    Watches take `turns`, since a change may concern thousands of them.
    """

    def __init__(
        self,
        cluster_id: bytes,
        request: watch_pb2.WatchRequest,
        opened: Opened,
        principal: AccessToken,
        feed: ChangeFeed,
        context: Context,
        turns: WatchTurns,
    ) -> None:
        self._header = common_pb2.ResponseHeader(
            cluster_id=cluster_id, view=opened.reply.view, op=opened.reply.op
        )
        self._wanted: WatchFilter = opened.wanted
        self._user_id = principal.user_id
        self._feed = feed
        self._context = context
        self._turns = turns
        self._sends_progress = request.progress_notifications
        self._complete = opened.from_revision - 1
        self._tells_again_s = 0.0  # by the loop's clock

    async def run(
        self, reads: ChangeReads, room: Callable[[], AbstractAsyncContextManager[None]]
    ) -> None:
        """Send changes until something ends the watch. Raises Refusal."""
        await self._write(self._complete, b"")
        follower = self._feed.add(self._wanted.keys(self._user_id))
        try:
            while True:
                if not follower.follow_from(self._complete + 1):
                    await self._feed.reads_for(follower)
                    async with room():
                        await self._catch_up(reads, follower)
                await self._follow(follower)
        finally:
            self._feed.remove(follower)

    async def _catch_up(self, reads: ChangeReads, follower: FeedFollower) -> None:
        """Read the services until the feed has what comes next. Raises Refusal."""
        pages = ChangePages(reads, self._complete + 1, self._user_id)
        if self._wanted.stream_id:
            pages.followed = followed_streams([self._wanted.stream_id])
        while not follower.follow_from(self._complete + 1):
            try:
                revisions = await pages.next()
            except ChangesLostError as lost:
                raise self._lapped(lost.oldest_revision) from lost
            self._header.view, self._header.op = revisions.view, revisions.op
            await self._send(await encoded(revisions.changes), revisions.complete_revision)
            await self._tell_progress()

    async def _follow(self, follower: FeedFollower) -> None:
        """Follow the feed; return once it has gone on without this watch. Raises Refusal."""
        while True:
            if not await self._woken(follower):
                self._complete = max(self._complete, self._feed.complete_revision)
                await self._tell_progress()
                continue
            await self._turns.take(follower.due)
            taken = follower.take()
            if taken is None:
                self._complete = max(self._complete, follower.quiet_revision)
                return
            self._header.view, self._header.op = self._feed.view, self._feed.op
            # Nothing is copied of a long revision, which many watches may have.
            known = bisect_right(taken.changes, self._complete, key=_revision_of)
            news = taken.changes[known:]
            await self._send(news, taken.complete_revision, has_turn=True)
            await self._tell_progress()

    async def _woken(self, follower: FeedFollower) -> bool:
        """Wait for the feed; return whether it woke this watch, or it is time to tell progress."""
        if not self._sends_progress:
            await follower.woken()
            return True
        try:
            async with asyncio.timeout_at(self._tells_again_s):
                await follower.woken()
        except TimeoutError:
            return follower.is_woken  # both may happen in one turn of the loop
        return True

    async def _tell_progress(self) -> None:
        """Tell how far the watch has come, if it wants to know and has heard nothing for long."""
        if self._sends_progress and asyncio.get_running_loop().time() >= self._tells_again_s:
            await self._write(self._complete, b"")

    async def _send(
        self, found: Sequence[FeedChange], complete_revision: int, *, has_turn: bool = False
    ) -> None:
        """Send what is wanted of whole revisions; raise the Refusal that they lead to.

        With `has_turn` it is its turn for the first part.
        """
        ending: tuple[int, Refusal] | None = None
        owed = 0  # the revision of changes that were sent without saying that they are all
        for start in range(0, len(found), CHANGES_AT_ONCE):
            rest = start + CHANGES_AT_ONCE
            part = found[start:rest]
            last = found[rest].change.revision - 1 if rest < len(found) else complete_revision
            if start or not has_turn:
                await self._turns.take(len(part))
            ending = self._ending(part) if ending is None else ending
            if ending is not None:
                last = min(last, ending[0])
                part = [each for each in part if each.change.revision <= ending[0]]
            wanted = [each for each in part if self._wanted.matches(each.change)]
            messages = [*_messages(wanted, last)]
            if not messages and 0 < owed <= last:
                messages = [(b"", last)]  # it does not want the rest of that revision
            owed = wanted[-1].change.revision if wanted else owed
            owed = owed if owed > last else 0
            for message, revision in messages:
                await self._write(revision, message)
            if ending is not None and last == ending[0]:
                self._complete = last
                raise ending[1]
        self._complete = max(self._complete, complete_revision)

    def _ending(self, found: Iterable[FeedChange]) -> tuple[int, Refusal] | None:
        """Return at which revision the watch ends, and why; None if it goes on."""
        for each in found:
            change = each.change
            if each.is_access and change.user_id == self._user_id and not _is_creation(change):
                return change.revision, _access_changed(self._user_id, change.revision)
            if self._wanted.ends_with(change):
                return change.revision, self._gone(change)
        return None

    def _gone(self, change: watch_pb2.Change) -> Refusal:
        """Return the refusal behind the removal of what is watched.

        Whoever had scoped grants in it has lost them with it, and would learn the same on opening
        the watch again.
        """
        if change.group_id:
            details = {"group": change.group_id, "topic": change.topic_id}
            return Refusal.of(Reason.REASON_GROUP_NOT_FOUND, **details)
        if change.topic_id:
            details = {"topic": change.topic_id, "stream": change.stream_id}
            return Refusal.of(Reason.REASON_TOPIC_NOT_FOUND, **details)
        return Refusal.of(Reason.REASON_STREAM_NOT_FOUND, stream=change.stream_id)

    async def _write(self, revision: int, encoded: bytes) -> None:
        self._tells_again_s = asyncio.get_running_loop().time() + WATCH_PROGRESS_MS / 1000
        self._header.revision = revision
        message = frame(self._header.SerializeToString()) + encoded
        await write_in_time(self._context, message, ANSWER_READING_TIMEOUT_MS)

    def _lapped(self, oldest_revision: int) -> Refusal:
        why = "the watch has fallen too far behind, or a service has restarted"
        return compacted(why, self._complete + 1, oldest_revision)


def _messages(wanted: Sequence[FeedChange], complete_revision: int) -> Iterator[tuple[bytes, int]]:
    """Yield encoded changes, each with the revision up to which all was sent with it."""
    parts: list[bytes] = []
    size_bytes = 0
    for each in wanted:
        if parts and size_bytes + len(each.encoded) > WATCH_MESSAGE_BYTES_MAX:
            yield b"".join(parts), each.change.revision - 1
            parts, size_bytes = [], 0
        part = _CHANGES_TAG + encode_varint(len(each.encoded)) + each.encoded
        parts.append(part)
        size_bytes += len(part)
    if parts:
        yield b"".join(parts), complete_revision


def _revision_of(each: FeedChange) -> int:
    return each.change.revision


def _is_creation(change: watch_pb2.Change) -> bool:
    return change.kind == watch_pb2.CHANGE_KIND_CREATED


def _access_changed(user_id: int, revision: int) -> Refusal:
    return Refusal(
        Reason.REASON_ACCESS_CHANGED,
        f"what user {user_id} may do changed at revision {revision}: watch again, from revision"
        f" {revision + 1} on",
        revision=revision,
    )
