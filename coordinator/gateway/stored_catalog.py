"""Stale reads of snapshots at a replica that serves nobody: the catalog view on its disk answers.

Without a quorum a restarted replica may not apply all that it had applied before, and the view
(`viewstamp.snapshots.catalog_view`) says what it knew of snapshots by then. Nobody here can tell
what others may see: only root is answered, by credentials that the applied state holds for current.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from coordinator.gateway.snapshots import answers_of
from coordinator.mux.catalog_types import GENERATION_ZERO, Snapshot, SnapshotState
from coordinator.replica.batcher import AnsweredSpan, Reply
from coordinator.stages.entities import snapshot_of
from viewstamp.framing import frame
from viewstamp.limits import READ_DEADLINE_MS
from viewstamp.routing import Method
from viewstamp.snapshots import catalog_view
from viewstamp.snapshots.catalog_view import CatalogView
from viewstamp.snapshots.errors import SnapshotFilesError
from viewstamp.tokens import AccessToken


class ViewedCatalog:
    """A catalog view, read as the catalog itself is (`snapshots.Catalog`)."""

    def __init__(self, view: CatalogView) -> None:
        self._snapshots = {each.generation: snapshot_of(each) for each in view.snapshots}

    def current(self) -> Snapshot:
        """Return the newest generation, generation 0 before the first."""
        return next(iter(self._snapshots.values()), GENERATION_ZERO)

    def latest_completed(self) -> Snapshot:
        """Return the newest completed generation, generation 0 before the first."""
        completed = (s for s in self._snapshots.values() if s.state is SnapshotState.COMPLETED)
        return next(completed, GENERATION_ZERO)

    def get(self, generation: int) -> Snapshot | None:
        """Return a generation."""
        return self._snapshots.get(generation) if generation else GENERATION_ZERO

    def list_after(self, generation: int, limit: int) -> Sequence[Snapshot]:
        """Return at most `limit` generations older than the given one, newest first; 0: all."""
        older = [s for each, s in self._snapshots.items() if not generation or each < generation]
        return older[:limit]


STORED_CODES: Final = frozenset(answers_of(ViewedCatalog(CatalogView(0, 0, 0))))


class StoredCatalog:
    """Answers root out of the view in a data directory.

    `is_root` says whether a caller is root, `replica_view` which view the replica is in.
    """

    def __init__(
        self,
        directory: Path,
        is_root: Callable[[AccessToken], bool],
        replica_view: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._is_root = is_root
        self._replica_view = replica_view
        self._reading: asyncio.Future[CatalogView] | None = None

    async def answer(self, method: Method, payload: bytes, principal: AccessToken) -> Reply | None:
        """Return the answer at the position of the view; None if the view cannot give it.

        Raises Refusal SNAPSHOT_NOT_FOUND, MALFORMED_REQUEST.
        """
        if not self._is_root(principal):
            return None
        try:
            request: Any = method.request.FromString(payload)
            view = await self._read()
        except (DecodeError, TimeoutError, SnapshotFilesError):
            return None
        if getattr(request, "wait", False):
            return None
        answer = answers_of(ViewedCatalog(view))[method.code](request)
        span = AnsweredSpan(frame(answer.SerializeToString()), ())
        return Reply(self._replica_view(), view.op, view.revision, (span,))

    async def _read(self) -> CatalogView:
        """Return the view; however many ask, and however long the disk takes, one thread reads."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(
                asyncio.to_thread(catalog_view.read, self._directory)
            )
        async with asyncio.timeout(READ_DEADLINE_MS / 1000):
            return await asyncio.shield(self._reading)
