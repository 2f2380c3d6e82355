"""The changes of all domains in one order, read page by page from the services.

A read of all three services sees one position of the log, so what they have changed up to its
revision is complete. Each service keeps its own changes in revision order; within a revision the
stages follow each other as they apply it. A service cuts its page off where it becomes long: then
what the others have behind that place waits here, so that revisions are given out whole.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from coordinator.gateway.replies import result_of
from coordinator.mux import types as mux
from coordinator.replica.batcher import Reply
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.watch.v1.watch_service_pb2 import Change
from viewstamp.framing import frame
from viewstamp.limits import CHANGES_PAGE_MAX, GATEWAY_SESSION_ID


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


class ChangePages:
    """Reads the changes of all domains from a revision on, for a user or for this replica."""

    def __init__(self, reads: ChangeReads, from_revision: int, user_id: int | None = None) -> None:
        self.complete_revision = from_revision - 1
        self._reads = reads
        self._user_id = user_id
        self._places: Final = {stage: _Place(from_revision) for stage in mux.SERVICE_STAGES}

    async def next(self, *, waits: bool = False) -> Revisions:
        """Return the next revisions, none if there are none; with `waits` wait for the first.

        Raises Refusal if the services do not answer, and ChangesLostError.
        """
        read = mux.Read(
            self._reads.next_token(),
            tuple(self._span(stage, place) for stage, place in self._places.items()),
            self._user_id,
            credential_revision=0,
            session_id=GATEWAY_SESSION_ID,
        )
        revision = self.complete_revision + 1 if waits else 0
        reply = await self._reads.start(read, linearizable=False, revision=revision)
        return self._joined(reply, [page_of(reply, index) for index in range(len(read.spans))])

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
            ),
        )

    def _joined(self, reply: Reply, pages: Sequence[domain_pb2.ChangesPage]) -> Revisions:
        """Take in one page of each stage, and give out the revisions that are whole."""
        oldest = max(page.oldest_revision for page in pages)
        if oldest > self.complete_revision + 1:
            raise ChangesLostError(oldest)
        behind = max(reply.first_revision, self.complete_revision) + 1
        for place, page in zip(self._places.values(), pages, strict=True):
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
        is_cut_off = any(page.is_cut_off for page in pages)
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
