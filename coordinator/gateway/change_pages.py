"""The changes of all domains in one order, read page by page from the services.

A read of all three services sees one position of the log, so what they have changed up to its
revision is complete. Each service keeps its own changes in revision order; within a revision the
stages follow each other as they apply it. A service cuts its page off where it becomes long: then
what the others have behind that place waits here, so that revisions are given out whole.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from coordinator.gateway.replies import result_of
from coordinator.mux import types as mux
from coordinator.replica.batcher import Reply
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.cancellation import end_if_cancelled
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.limits import CHANGES_PAGE_MAX, GATEWAY_SESSION_ID, READ_DEADLINE_MS

# Users are in no stream.
_OF_STREAMS: Final = tuple(stage for stage in mux.SERVICE_STAGES if stage is not mux.Stage.USERS)


class ChangeReads(Protocol):
    """Reads of this replica as seen from here."""

    def next_token(self) -> int:
        """Return a new token for a read."""
        ...

    def start(self, read: mux.Read, *, linearizable: bool, revision: int) -> asyncio.Future[Reply]:
        """Start a read. Raises Refusal OVERLOADED."""
        ...


class ChangesLostError(Exception):
    """Changes that were asked for are not kept any more; `oldest_revision` and later ones are."""

    def __init__(self, oldest_revision: int) -> None:
        """Say from where on changes are kept."""
        super().__init__(f"changes are kept from revision {oldest_revision} on")
        self.oldest_revision = oldest_revision


class CalledOffError(Exception):
    """The page that was waited for was called off."""


@dataclass(frozen=True, slots=True)
class Revisions:
    """Whole revisions, in order: every change up to `complete_revision` that was not read before.

    `view` and `op` are of the read, for the header of an answer. `is_cut_off` says that more are
    there already.
    """

    changes: Sequence[Change]
    complete_revision: int
    is_cut_off: bool
    view: int
    op: int


@dataclass(slots=True)
class _Place:
    """How far the changes of one stage were read, and those that wait for other stages."""

    revision: int
    skipped: int = 0
    waiting: list[Change] = field(default_factory=list)


def followed_streams(stream_ids: Iterable[int]) -> bytes:
    """Return `ChangePages.followed` for the changes in some streams."""
    return domain_pb2.FollowedStreams(stream_ids=sorted(stream_ids)).SerializeToString()


class ChangePages:
    """Reads the changes of all domains from a revision on, for a user or for this replica.

    `followed` has the services leave out what is in other streams, or None; it may be set between
    two pages.
    """

    def __init__(self, reads: ChangeReads, from_revision: int, user_id: int | None = None) -> None:
        self.complete_revision = from_revision - 1
        self.followed: bytes | None = None
        self._asked: asyncio.Future[Reply] | None = None
        self._reads = reads
        self._user_id = user_id
        self._places: Final = {stage: _Place(from_revision) for stage in mux.SERVICE_STAGES}

    @property
    def unread_revision(self) -> int:
        """The first revision of which nothing was left out yet.

        While something is left out, users are passed over up to the place of the last answer.
        """
        return max(place.revision for place in self._places.values())

    @property
    def is_idle(self) -> bool:
        """Whether no page is waited for."""
        return self._asked is None

    def call_off(self) -> bool:
        """Call the page off that is waited for; return False if its answer is there already."""
        return self._asked is not None and self._asked.cancel()

    async def next(self, *, waits: bool = False) -> Revisions:
        """Return the next revisions, none if there are none; with `waits` wait for the first.

        Raises Refusal if the services do not answer, ChangesLostError, and CalledOffError.
        """
        asked = self._asked_stages()
        read = mux.Read(
            self._reads.next_token(),
            tuple(self._span(stage, self._places[stage]) for stage in asked),
            self._user_id,
            credential_revision=0,
            session_id=GATEWAY_SESSION_ID,
        )
        revision = self.complete_revision + 1 if waits else 0
        self._asked = self._reads.start(read, linearizable=False, revision=revision)
        try:
            reply = await self._asked
        except asyncio.CancelledError:
            end_if_cancelled()
            raise CalledOffError from None
        finally:
            self._asked = None
        self._pass_over(reply, asked)
        return self._joined(reply, {stage: page_of(reply, n) for n, stage in enumerate(asked)})

    def _asked_stages(self) -> tuple[mux.Stage, ...]:
        return mux.SERVICE_STAGES if self.followed is None else _OF_STREAMS

    def _pass_over(self, reply: Reply, asked: Collection[mux.Stage]) -> None:
        """Leave out what other stages than those that were asked have up to a reply."""
        for stage, place in self._places.items():
            if stage not in asked:
                place.revision, place.skipped = max(reply.first_revision + 1, place.revision), 0

    def _span(self, stage: mux.Stage, place: _Place) -> mux.ReadSpan:
        # Who is ahead of the others has changes that wait already: more of them would fill the
        # memory while one catches up.
        is_ahead = place.revision > self.complete_revision + 1
        return changes_span(
            stage,
            domain_pb2.ChangesRequest(
                from_revision=place.revision,
                skipped=place.skipped,
                changes_max=0 if is_ahead else CHANGES_PAGE_MAX,
                followed=self.followed,
            ),
        )

    def _joined(self, reply: Reply, pages: Mapping[mux.Stage, domain_pb2.ChangesPage]) -> Revisions:
        """Take in a page of each stage that was asked; give out the revisions that are whole."""
        oldest = max(page.oldest_revision for page in pages.values())
        if oldest > self.complete_revision + 1:
            raise ChangesLostError(oldest)
        behind = max(reply.first_revision, self.complete_revision) + 1
        for stage, page in pages.items():
            place = self._places[stage]
            place.waiting += page.changes
            if page.is_cut_off:
                place.revision, place.skipped = page.next_revision, page.next_skipped
                behind = min(behind, page.next_revision)
            else:
                place.revision, place.skipped = max(reply.first_revision + 1, place.revision), 0
        self.complete_revision = max(behind - 1, self.complete_revision)
        changes = [change for place in self._places.values() for change in _taken(place, behind)]
        # The sort is stable: within a revision, stages and their changes stay in order.
        changes.sort(key=lambda change: change.revision)
        is_cut_off = any(page.is_cut_off for page in pages.values())
        return Revisions(changes, self.complete_revision, is_cut_off, reply.view, reply.op)


def changes_span(stage: mux.Stage, request: domain_pb2.ChangesRequest) -> mux.ReadSpan:
    """Return the builtin read of the changes of a stage."""
    items = frame(request.SerializeToString())
    return mux.ReadSpan(mux.CHANGES_CODE, 1, items, owner=stage)


def page_of(reply: Reply, index: int) -> domain_pb2.ChangesPage:
    """Return the answer to a span that reads changes. Raises the Refusal of the read."""
    return domain_pb2.ChangesPage.FromString(result_of(reply, index))


def _taken(place: _Place, behind: int) -> list[Change]:
    """Take the waiting changes of the revisions before `behind`."""
    count = bisect_left(place.waiting, behind, key=lambda change: change.revision)
    taken, place.waiting = place.waiting[:count], place.waiting[count:]
    return taken


async def confirmed(reads: ChangeReads, read: mux.Read, revision: int, advice: str) -> Reply:
    """Return the answer to a read of the present, not before a revision.

    Raises Refusal READ_DEADLINE, which ends with `advice`, and that of the read.
    """
    try:
        async with asyncio.timeout(READ_DEADLINE_MS / 1000):
            return await reads.start(read, linearizable=True, revision=revision)
    except TimeoutError as error:
        raise Refusal(
            Reason.REASON_READ_DEADLINE,
            f"the cluster did not come to revision {revision}, or confirm it, within"
            f" {READ_DEADLINE_MS} ms: {advice}",
            deadline_ms=READ_DEADLINE_MS,
        ) from error
