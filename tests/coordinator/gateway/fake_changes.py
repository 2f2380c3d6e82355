"""Three services that keep changes, and the reads of a replica that ask them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from coordinator.mux import types as mux
from coordinator.replica.batcher import AnsweredSpan, Reply
from viewstamp.api.consumer_groups.v1.consumer_groups_pb2 import ConsumerGroup, Member
from viewstamp.api.domain.v1 import domain_service_pb2 as domain
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.streams.v1.streams_pb2 import Stream, Topic
from viewstamp.api.users.v1.users_pb2 import PersonalAccessToken, User
from viewstamp.api.watch.v1 import watch_service_pb2 as watch
from viewstamp.errors import Refusal
from viewstamp.framing import frame, unframe

CREATED: Final = watch.CHANGE_KIND_CREATED
UPDATED: Final = watch.CHANGE_KIND_UPDATED
DELETED: Final = watch.CHANGE_KIND_DELETED
USER: Final = User.DESCRIPTOR.full_name
TOKEN: Final = PersonalAccessToken.DESCRIPTOR.full_name
STREAM: Final = Stream.DESCRIPTOR.full_name
TOPIC: Final = Topic.DESCRIPTOR.full_name
GROUP: Final = ConsumerGroup.DESCRIPTOR.full_name
MEMBER: Final = Member.DESCRIPTOR.full_name
ACCESS: Final = ""
STAGES: Final = {
    USER: mux.Stage.USERS,
    TOKEN: mux.Stage.USERS,
    STREAM: mux.Stage.STREAMS,
    TOPIC: mux.Stage.STREAMS,
    ACCESS: mux.Stage.STREAMS,
    GROUP: mux.Stage.CONSUMER_GROUPS,
    MEMBER: mux.Stage.CONSUMER_GROUPS,
}
WATCHED: Final = {
    stage: tuple(name for name, owner in STAGES.items() if name and owner is stage)
    for stage in mux.SERVICE_STAGES
}
TURNS: Final = 100
PATIENCE_S: Final = 60


def change(
    entity_type: str,
    stream: int = 0,
    topic: int = 0,
    group: int = 0,
    *,
    user: int = 0,
    kind: watch.ChangeKind.ValueType = UPDATED,
    entity: bytes = b"",
) -> watch.Change:
    """Return a change without its revision."""
    return watch.Change(
        domain=int(STAGES[entity_type]),  # type: ignore[arg-type]
        kind=kind,
        entity_type=entity_type,
        entity=entity,
        stream_id=stream,
        topic_id=topic,
        group_id=group,
        user_id=user,
    )


@dataclass(frozen=True, slots=True)
class StartedRead:
    """A read that was started."""

    read: mux.Read
    linearizable: bool
    revision: int
    future: asyncio.Future[Reply]

    def asked(self) -> list[domain.ChangesRequest]:
        """Return what it asks of each stage."""
        return [
            domain.ChangesRequest.FromString(unframe(span.items)[0]) for span in self.read.spans
        ]


class FakeChanges:
    """Services at one revision, which answer at once; a page passes `page_max` changes.

    If the replica `is_cut_off`, linearizable reads get no answer; services that are `is_lagging`
    answer by nothing but that there is more. A `refusal` is that of every read. While reads are
    held, each is answered by `release`, as of then.
    """

    def __init__(self, page_max: int = 1_024) -> None:
        self.revision = 0
        self.page_max = page_max
        self.oldest = dict.fromkeys(mux.SERVICE_STAGES, 1)
        self.is_cut_off = self.is_lagging = self.is_held = False
        self.refusal: Refusal | None = None
        self.started: list[StartedRead] = []
        self.waiting: list[StartedRead] = []
        self.refused = 0  # how many reads
        self._kept: dict[mux.Stage, list[watch.Change]] = {
            stage: [] for stage in mux.SERVICE_STAGES
        }
        self._token = 0

    # --- What happens ---

    def commit(self, *changes: watch.Change) -> int:
        """Make changes at the next revision, in the order of their stages; return it."""
        self.revision += 1
        for each in changes:
            kept = watch.Change()
            kept.CopyFrom(each)
            kept.revision = self.revision
            self._kept[STAGES[each.entity_type]].append(kept)
        if not self.is_held:
            self.release()
        return self.revision

    def release(self) -> None:
        """Answer the reads that can be answered."""
        waiting, self.waiting = self.waiting, []
        for started in waiting:
            self._try(started)

    def forget(self, before: int, stage: mux.Stage = mux.Stage.STREAMS) -> None:
        """Let a stage keep nothing from before a revision."""
        self.oldest[stage] = before
        self._kept[stage] = [each for each in self._kept[stage] if each.revision >= before]

    def all_changes(self, first: int = 1) -> list[watch.Change]:
        """Return the changes that are kept, in the order of the feed."""
        found = [each for stage in mux.SERVICE_STAGES for each in self._kept[stage]]
        return sorted(
            (each for each in found if each.revision >= first), key=lambda each: each.revision
        )

    # --- For the product ---

    def next_token(self) -> int:
        """Return a new token."""
        self._token += 1
        return self._token

    def start(self, read: mux.Read, *, linearizable: bool, revision: int) -> asyncio.Future[Reply]:
        """Answer a read, or let it wait."""
        if self.refusal is not None and self.refusal.reason == Reason.REASON_OVERLOADED:
            self.refused += 1
            raise self.refusal
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        started = StartedRead(read, linearizable, revision, future)
        self.started.append(started)
        if self.is_held:
            self.waiting.append(started)
        else:
            self._try(started)
        return future

    def _try(self, started: StartedRead) -> None:
        if started.future.done():
            return
        if self.revision < started.revision or (started.linearizable and self.is_cut_off):
            self.waiting.append(started)
            return
        if self.refusal is not None:
            self.refused += 1
            started.future.set_exception(self.refusal)
            return
        pages = [
            self.page(mux.Stage(span.owner or 0), request)
            for span, request in zip(started.read.spans, started.asked(), strict=True)
        ]
        spans = tuple(AnsweredSpan(frame(page.SerializeToString()), ()) for page in pages)
        started.future.set_result(Reply(1, self.revision, self.revision, spans))

    def page(self, stage: mux.Stage, request: domain.ChangesRequest) -> domain.ChangesPage:
        """Return a page as a service does."""
        kept = self._kept[stage]
        begin = sum(1 for each in kept if each.revision < request.from_revision)
        same = sum(1 for each in kept if each.revision == request.from_revision)
        start = begin + min(request.skipped, same)
        stop = start + min(request.changes_max, self.page_max)
        page = domain.ChangesPage(oldest_revision=self.oldest[stage])
        page.changes.extend(each for each in kept[start:stop] if _is_followed(each, request))
        if self.is_lagging:
            empty = domain.ChangesPage(oldest_revision=self.oldest[stage], is_cut_off=True)
            empty.next_revision, empty.next_skipped = request.from_revision, request.skipped
            return empty
        if stop < len(kept):
            page.is_cut_off = True
            page.next_revision = kept[stop].revision
            page.next_skipped = sum(
                1 for each in kept[:stop] if each.revision == page.next_revision
            )
        return page


def _is_followed(each: watch.Change, request: domain.ChangesRequest) -> bool:
    if not request.HasField("followed") or each.entity_type == ACCESS:
        return True
    return each.stream_id in domain.FollowedStreams.FromString(request.followed).stream_ids


def told(changes: Iterable[watch.Change]) -> list[tuple[int, int, str, bytes]]:
    """Return what tells changes apart."""
    return [(each.revision, each.domain, each.entity_type, each.entity) for each in changes]


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if condition():
                return
            await asyncio.sleep(0.001)


async def turns(count: int = TURNS) -> None:
    """Let whatever can go on do so."""
    for _ in range(count):
        await asyncio.sleep(0)
