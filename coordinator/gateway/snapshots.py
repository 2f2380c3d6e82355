"""Reads of snapshots: answered from the replicated catalog, at the position of the read.

GetCurrentSnapshot with `wait` is the exception: it is answered once the generation that it found
under way is decided, from what was applied by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from coordinator.gateway.local_reads import parsed
from coordinator.mux import types as mux
from coordinator.mux.catalog_types import Snapshot, SnapshotState, TaskSnapshot
from coordinator.mux.stage import Stage
from coordinator.snapshot import values
from coordinator.stages.entities import snapshot_message
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.errors import Refusal
from viewstamp.framing import frame
from viewstamp.paging import PagedList, page_size
from viewstamp.routing import MethodKind, methods_of_file

_METHODS: Final = {m.code: m for m in methods_of_file(pb.DESCRIPTOR) if m.kind is MethodKind.QUERY}
_CODES: Final = {method.name: code for code, method in _METHODS.items()}


class Catalog(Protocol):
    """The catalog machine as seen from here."""

    def current(self) -> Snapshot:
        """Return the newest generation, generation 0 before the first."""
        ...

    def latest_completed(self) -> Snapshot:
        """Return the newest completed generation, generation 0 before the first."""
        ...

    def get(self, generation: int) -> Snapshot | None:
        """Return a generation."""
        ...

    def list_after(self, generation: int, limit: int) -> Sequence[Snapshot]:
        """Return at most `limit` generations older than the given one, newest first; 0: all."""
        ...


class Timer(Protocol):
    """A call that comes later."""

    def cancel(self) -> None:
        """Do not call."""


@dataclass(slots=True)
class _Waiting:
    """A span of reads of which some wait for a generation to be decided."""

    query_id: int
    generation: int
    results: list[Message | None]  # None where an index was refused, or waits
    errors: tuple[mux.IndexedError, ...]
    indexes: tuple[int, ...]  # which wait
    timer: Timer


class SnapshotReads:
    """Answers the reads of SnapshotsService.

    `reported` returns the tasks of a generation under way that were reported on this replica, and
    `follow` delivers the answer to a deferred read (`MuxEffects.read_followed`).
    """

    def __init__(
        self,
        catalog: Catalog,
        reported: Callable[[int], tuple[TaskSnapshot, ...]],
        follow: Callable[[mux.QueryOutcome], None],
        call_later: Callable[[int, Callable[[], None]], Timer] | None = None,
        level_in_force: Callable[[], int] = lambda: limits.FEATURE_LEVEL_MAX,
    ) -> None:
        self._catalog = catalog
        self._reported = reported
        self._follow = follow
        self._call_later = call_later or _call_later
        self._level_in_force = level_in_force
        self._waiting: dict[int, _Waiting] = {}
        self._answers = {**answers_of(catalog), _CODES["LookupGeneration"]: self._lookup}

    @property
    def codes(self) -> Collection[int]:
        """The methods."""
        return _METHODS.keys()

    @property
    def waiting(self) -> int:
        """How many spans wait for a decision."""
        return len(self._waiting)

    def query(self, item: mux.QueryItem) -> mux.QueryOutcome:
        """Answer a span of reads, or announce that the answer follows."""
        requests, malformed = parsed(item, _METHODS)
        results: list[Message | None] = [None] * item.count
        errors = list(malformed)
        for index, request in requests.items():
            try:
                results[index] = self._answers[item.code](request)
            except Refusal as refusal:
                errors.append(_indexed(index, refusal))
        indexes = self._waiting_indexes(requests)
        if not indexes:
            return _outcome(item.query_id, results, errors)
        if len(self._waiting) >= limits.DEFERRED_QUERIES_MAX:
            overloaded = _overloaded(len(self._waiting))
            return _outcome(item.query_id, results, [*errors, *_all(indexes, overloaded)], indexes)
        self._wait(item.query_id, results, tuple(errors), indexes)
        return mux.QueryOutcome(item.query_id, deferred=True)

    def catalog_changed(self, changed: Sequence[Snapshot], deleted: Sequence[int]) -> None:
        """Answer those who waited for a generation that is decided, or gone, now."""
        decided = {s.generation: s for s in changed if s.state is not SnapshotState.CREATED}
        gone = frozenset(deleted) - decided.keys()
        for waiting in list(self._waiting.values()):
            if waiting.generation in decided:
                self._answer(waiting, decided[waiting.generation])
            elif waiting.generation in gone:
                self._answer(waiting, self._catalog.current())

    # --- Waiting ---

    def _waiting_indexes(self, requests: dict[int, Any]) -> tuple[int, ...]:
        if self._catalog.current().state is not SnapshotState.CREATED:
            return ()
        return tuple(i for i, request in requests.items() if getattr(request, "wait", False))

    def _wait(
        self,
        query_id: int,
        results: list[Message | None],
        errors: tuple[mux.IndexedError, ...],
        indexes: tuple[int, ...],
    ) -> None:
        # Whoever asked was told the same by then; nothing must be kept of a read for ever.
        timer = self._call_later(limits.READ_DEADLINE_MS, lambda: self._expire(query_id))
        generation = self._catalog.current().generation
        self._waiting[query_id] = _Waiting(query_id, generation, results, errors, indexes, timer)

    def _answer(self, waiting: _Waiting, snapshot: Snapshot) -> None:
        del self._waiting[waiting.query_id]
        waiting.timer.cancel()
        for index in waiting.indexes:
            waiting.results[index] = pb.GetCurrentSnapshotResponse(
                snapshot=snapshot_message(snapshot)
            )
        self._follow(_outcome(waiting.query_id, waiting.results, waiting.errors))

    def _expire(self, query_id: int) -> None:
        waiting = self._waiting.pop(query_id)
        late = _all(waiting.indexes, _undecided(waiting.generation))
        errors = [*waiting.errors, *late]
        self._follow(_outcome(query_id, waiting.results, errors, waiting.indexes))

    def _lookup(self, request: pb.LookupGenerationRequest) -> Message:
        current = self._catalog.current()
        expected = values.expected_tasks(self._level_in_force())
        if request.stage not in map(int, expected):
            names = ", ".join(f"{int(stage)} ({stage.name.lower()})" for stage in expected)
            raise Refusal(
                Reason.REASON_MALFORMED_REQUEST,
                f"stage {request.stage} has no section: use one of {names}",
                stage=request.stage,
            )
        if current.state is SnapshotState.CREATED:
            current = _with_tasks(current, self._reported(current.generation))
        generation = values.lookup_generation(current, Stage(request.stage))
        return pb.LookupGenerationResponse(generation=generation)


def answers_of(catalog: Catalog) -> dict[int, Callable[[Any], Message]]:
    """Return what answers the reads that a catalog can answer, by code; each may raise Refusal."""

    def get(request: pb.GetSnapshotRequest) -> Message:
        found = catalog.get(request.generation)
        if found is None:
            raise Refusal(
                Reason.REASON_SNAPSHOT_NOT_FOUND,
                f"there is no snapshot {request.generation}: list the snapshots to see which exist",
                generation=request.generation,
            )
        return pb.GetSnapshotResponse(snapshot=snapshot_message(found))

    def page(request: pb.ListSnapshotsRequest) -> Message:
        size, pages = page_size(request.page_size), PagedList("ListSnapshots")
        after = pages.id_after(request.page_token) if request.page_token else 0
        found = catalog.list_after(after, size + 1)
        return pb.ListSnapshotsResponse(
            snapshots=map(snapshot_message, found[:size]),
            next_page_token=pages.next_id_token([each.generation for each in found], size),
        )

    return {
        _CODES["GetCurrentSnapshot"]: lambda _: pb.GetCurrentSnapshotResponse(
            snapshot=snapshot_message(catalog.current())
        ),
        _CODES["GetLatestSnapshot"]: lambda _: pb.GetLatestSnapshotResponse(
            snapshot=snapshot_message(catalog.latest_completed())
        ),
        _CODES["GetSnapshot"]: get,
        _CODES["ListSnapshots"]: page,
    }


def _with_tasks(current: Snapshot, tasks: tuple[TaskSnapshot, ...]) -> Snapshot:
    stages = [task.stage for task in tasks]
    return values.with_reports(current, current.generation, tasks, stages)


def _outcome(
    query_id: int,
    results: Sequence[Message | None],
    errors: Sequence[mux.IndexedError],
    refused: Collection[int] = (),
) -> mux.QueryOutcome:
    """Return the answer to a span; the results of `refused` indexes are left out."""
    encoded = (
        mux.EMPTY_FRAME if result is None or index in refused else frame(result.SerializeToString())
        for index, result in enumerate(results)
    )
    ordered = tuple(sorted(errors, key=lambda error: error.index))
    return mux.QueryOutcome(query_id, b"".join(encoded), ordered)


def _indexed(index: int, refusal: Refusal) -> mux.IndexedError:
    return mux.IndexedError(index, refusal.to_answer().SerializeToString())


def _all(indexes: Sequence[int], refusal: Refusal) -> list[mux.IndexedError]:
    return [_indexed(index, refusal) for index in indexes]


def _overloaded(waiting: int) -> Refusal:
    return Refusal(
        Reason.REASON_OVERLOADED,
        f"{waiting} reads are already waiting for a snapshot: read without `wait`, or try"
        " again later",
        waiting=waiting,
    )


def _undecided(generation: int) -> Refusal:
    return Refusal(
        Reason.REASON_READ_DEADLINE,
        f"snapshot {generation} was not decided within {limits.READ_DEADLINE_MS} ms: read it again",
        generation=generation,
        deadline_ms=limits.READ_DEADLINE_MS,
    )


def _call_later(delay_ms: int, call: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(delay_ms / 1000, call)
