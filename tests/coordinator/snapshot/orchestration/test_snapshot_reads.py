"""Reads of snapshots through the catalog stage: one by one, in pages, and waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coordinator.base.alarms import Alarms
from coordinator.gateway.cluster import ClusterStage
from coordinator.gateway.snapshots import SnapshotReads
from coordinator.mux import types as mux
from coordinator.mux.catalog import CatalogMachine
from coordinator.mux.catalog_types import (
    BeginSnapshot,
    CatalogCommand,
    CompleteSnapshot,
    CreateSnapshot,
    DeleteSnapshot,
    FailSnapshot,
    RetentionClass,
    SnapshotState,
    TaskSnapshot,
)
from coordinator.mux.sessions import SessionRefused
from coordinator.mux.stage import STAGES, Stage
from coordinator.snapshot.api import LocalSnapshotApi
from coordinator.stages.catalog_codec import CATALOG_PARSERS
from coordinator.stages.codec import ProtobufCodec
from tests.coordinator.snapshot.orchestration.orchestra import task, tasks
from viewstamp import limits
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.errors import Refusal
from viewstamp.framing import frame_all, unframe

CURRENT, GET, LIST, LATEST, LOOKUP = 460, 461, 462, 463, 464
WAIT = pb.GetCurrentSnapshotRequest(wait=True).SerializeToString()
BAD = b"\xff"


class FakeTimer:
    """A call that the test makes, or that was cancelled."""

    def __init__(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Begin to wait."""
        self.delay_ms = delay_ms
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        """Wait no more."""
        self.is_cancelled = True


def stage_over(*reads: SnapshotReads) -> ClusterStage:
    """Return the stage of the cluster, which leads to these reads."""
    nothing: Any = None
    alarms = Alarms(lambda: 0)
    return ClusterStage(
        *(nothing, nothing, nothing, alarms, {}, lambda: 0, list, 0, bytes(16)), reads=reads
    )


class World:
    """A catalog machine, and reads of it through the stage of the cluster."""

    def __init__(self) -> None:
        """Begin without snapshots."""
        self.machine = CatalogMachine(ProtobufCodec())
        self.reported: tuple[TaskSnapshot, ...] = ()
        self.followed: list[mux.QueryOutcome] = []
        self.timers: list[FakeTimer] = []
        self.revision = 0
        self.reads = SnapshotReads(
            self.machine, lambda _: self.reported, self.followed.append, self._call_later
        )
        self.stage = stage_over(self.reads)

    def _call_later(self, delay_ms: int, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(delay_ms, call))
        return self.timers[-1]

    def command(self, *commands: CatalogCommand) -> None:
        """Apply and apply commands."""
        for command in commands:
            self.revision += 1
            place = (self.revision, self.revision, self.revision, 1)
            self.machine.apply(command, *place)
            changes = self.machine.take_changes()
            changed = [snapshot for snapshot in changes.values() if snapshot is not None]
            deleted = [g for g, snapshot in changes.items() if snapshot is None]
            self.reads.catalog_changed(changed, deleted)

    def complete(self, generation: int, keep_last: int = 1000) -> None:
        """Cut and complete a generation."""
        self.command(
            BeginSnapshot(generation, keep_last, 0),
            CompleteSnapshot(generation, b"r" * 32, tasks()),
        )

    def ask(
        self, code: int, *items: bytes, refused: tuple[int, ...] = (), query_id: int = 1
    ) -> mux.QueryOutcome:
        """Read through the stage."""
        item = mux.QueryItem(query_id, code, len(items), frame_all(items), 0, 1, 0, refused, b"")
        batch = mux.StageBatch(mux.Stage.CATALOG, 0, 3, 1, (item,))
        (outcome,) = self.stage.read(batch).outcomes
        assert isinstance(outcome, mux.QueryOutcome)
        return outcome

    def generations(self, outcome: mux.QueryOutcome) -> list[int]:
        """Return the generations of GetCurrentSnapshot's answers."""
        responses = map(pb.GetCurrentSnapshotResponse.FromString, unframe(outcome.results))
        return [response.snapshot.generation for response in responses]


def reasons(outcome: mux.QueryOutcome) -> list[tuple[int, int]]:
    """Return index and reason of each refusal."""
    return [(e.index, errors_pb2.Error.FromString(e.error).reason) for e in outcome.errors]


def test_codes_are_those_of_the_proto() -> None:
    """Each read of the service is answered, and a second one for the same code is refused."""
    world = World()
    assert set(world.reads.codes) == {CURRENT, GET, LIST, LATEST, LOOKUP}
    with pytest.raises(ValueError, match="answered already"):
        stage_over(world.reads, world.reads)


def test_before_the_first() -> None:
    """Before the first snapshot generation 0, completed and empty, is current and latest."""
    world = World()
    for code in (CURRENT, LATEST):
        (encoded,) = unframe(world.ask(code, b"").results)
        snapshot = pb.GetLatestSnapshotResponse.FromString(encoded).snapshot
        assert (snapshot.generation, snapshot.state) == (0, pb.SNAPSHOT_STATE_COMPLETED)
    (listed,) = unframe(world.ask(LIST, b"").results)
    assert pb.ListSnapshotsResponse.FromString(listed) == pb.ListSnapshotsResponse()


def test_one_by_one() -> None:
    """A span is answered index by index; what is refused, by whomever, leaves the rest alone."""
    world = World()
    world.complete(1)
    wanted, missing = (pb.GetSnapshotRequest(generation=g).SerializeToString() for g in (1, 5))
    outcome = world.ask(GET, missing, wanted, BAD, wanted, refused=(3,))
    assert reasons(outcome) == [
        (0, Reason.REASON_SNAPSHOT_NOT_FOUND),
        (2, Reason.REASON_MALFORMED_REQUEST),
    ]
    empty, found, *rest = map(pb.GetSnapshotResponse.FromString, unframe(outcome.results))
    assert (found.snapshot.root, len(found.snapshot.tasks)) == (b"r" * 32, 5)
    assert [empty, *rest] == [pb.GetSnapshotResponse()] * 3


def test_latest_is_not_current() -> None:
    """The latest completed generation stays while a newer one is under way, or has failed."""
    world = World()
    world.complete(1)
    world.command(BeginSnapshot(2, 5, 0), FailSnapshot(2, "why"))
    (latest,) = unframe(world.ask(LATEST, b"").results)
    assert pb.GetLatestSnapshotResponse.FromString(latest).snapshot.generation == 1
    assert world.generations(world.ask(CURRENT, b"")) == [2]


def _pages(world: World, size: int) -> list[list[int]]:
    pages, token = [], ""
    while True:
        request = pb.ListSnapshotsRequest(page_size=size, page_token=token).SerializeToString()
        (encoded,) = unframe(world.ask(LIST, request).results)
        response = pb.ListSnapshotsResponse.FromString(encoded)
        pages.append([snapshot.generation for snapshot in response.snapshots])
        token = response.next_page_token
        if not token:
            return pages


@pytest.mark.parametrize(
    ("size", "expected"),
    [(0, [[4, 3, 2, 1]]), (2, [[4, 3], [2, 1]]), (3, [[4, 3, 2], [1]]), (4, [[4, 3, 2, 1]])],
)
def test_pages(size: int, expected: list[list[int]]) -> None:
    """Lists are paged from the newest down, and no page but an only one is empty."""
    world = World()
    for generation in range(1, 5):
        world.complete(generation)
    assert _pages(world, size) == expected


@pytest.mark.parametrize(
    ("size", "token"), [(1001, ""), (1, "!"), (1, "AAAA"), (1, "AAAAAAAAAAH=")]
)
def test_malformed_pages(size: int, token: str) -> None:
    """Pages too large, and tokens that never were ours, are refused."""
    request = pb.ListSnapshotsRequest(page_size=size, page_token=token).SerializeToString()
    assert reasons(World().ask(LIST, request)) == [(0, Reason.REASON_MALFORMED_REQUEST)]


def _lookup(world: World, *stages: int) -> list[int]:
    items = [pb.LookupGenerationRequest(stage=s).SerializeToString() for s in stages]  # type: ignore[arg-type]
    encoded = unframe(world.ask(LOOKUP, *items).results)
    return [pb.LookupGenerationResponse.FromString(each).generation for each in encoded]


def test_lookup() -> None:
    """A section has reached the generation under way if it was reported here, else the former."""
    world = World()
    world.complete(1)
    world.command(BeginSnapshot(2, 5, 0))
    world.reported = (task(Stage.STREAMS),)
    assert _lookup(world, *map(int, STAGES)) == [1, 1, 2, 1, 1]
    world.command(FailSnapshot(2, "why"))
    world.reported = ()
    assert _lookup(world, *map(int, STAGES)) == [2] * 5
    outcome = world.ask(LOOKUP, b"")
    assert reasons(outcome) == [(0, Reason.REASON_MALFORMED_REQUEST)]


# --- Waiting -------------------------------------------------------------------------------------


def test_waits_only_while_one_is_under_way() -> None:
    """With nothing under way a waiting read is answered at once."""
    world = World()
    assert not world.ask(CURRENT, WAIT).deferred
    world.complete(1)
    assert world.generations(world.ask(CURRENT, WAIT)) == [1]


def test_answered_when_decided() -> None:
    """A waiting read is answered with the decision; those beside it are as of their position."""
    world = World()
    world.command(CreateSnapshot())
    assert not world.ask(CURRENT, b"").deferred
    assert world.ask(CURRENT, WAIT, b"", BAD, WAIT, refused=(3,)).deferred
    world.command(BeginSnapshot(1, 5, 0))
    assert world.followed == []
    world.command(CompleteSnapshot(1, b"r" * 32, tasks()))
    (outcome,) = world.followed
    responses = [*map(pb.GetCurrentSnapshotResponse.FromString, unframe(outcome.results))]
    assert [r.snapshot.state for r in responses] == [
        pb.SNAPSHOT_STATE_COMPLETED,
        pb.SNAPSHOT_STATE_CREATED,
        0,
        0,
    ]
    assert reasons(outcome) == [(2, Reason.REASON_MALFORMED_REQUEST)]
    assert (world.reads.waiting, world.timers[0].is_cancelled) == (0, True)


def test_answered_when_it_failed_and_when_it_is_gone() -> None:
    """Failure is a decision too; a generation that is gone is answered by the current one."""
    world = World()
    world.command(CreateSnapshot())
    world.ask(CURRENT, WAIT)
    world.command(FailSnapshot(1, "why"))
    assert world.generations(world.followed.pop()) == [1]
    world.command(CreateSnapshot())
    world.ask(CURRENT, WAIT)
    world.machine.apply(FailSnapshot(2, "why"), 9, 9, 9, 1)
    world.machine.apply(DeleteSnapshot(2), 10, 10, 10, 1)
    world.reads.catalog_changed((), (2,))
    assert world.generations(world.followed.pop()) == [1]


def test_deadline_of_a_waiting_read() -> None:
    """A read waits no longer than any read may: then it is refused, and nothing is kept of it."""
    world = World()
    world.command(CreateSnapshot())
    world.ask(CURRENT, WAIT, b"")
    assert world.timers[0].delay_ms == 5_000
    world.timers[0].call()
    (outcome,) = world.followed
    assert reasons(outcome) == [(0, Reason.REASON_READ_DEADLINE)]
    assert (world.generations(outcome), world.reads.waiting) == ([0, 1], 0)
    world.complete(1)
    assert len(world.followed) == 1


def test_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a limit waiting reads are refused, the others beside them are not."""
    monkeypatch.setattr(limits, "DEFERRED_QUERIES_MAX", 1)
    world = World()
    world.command(CreateSnapshot())
    assert world.ask(CURRENT, WAIT).deferred
    outcome = world.ask(CURRENT, WAIT, b"", query_id=2)
    assert reasons(outcome) == [(0, Reason.REASON_OVERLOADED)]
    assert world.generations(outcome) == [0, 1]


# --- In process ----------------------------------------------------------------------------------


def _api(world: World) -> LocalSnapshotApi:
    async def submit(code: int, request: bytes) -> bytes:
        world.revision += 1
        place = (world.revision, world.revision, world.revision, 1)
        verdict = world.machine.apply(CATALOG_PARSERS[code](request), *place)
        if isinstance(verdict, SessionRefused):
            raise Refusal.from_error(errors_pb2.Error.FromString(verdict.error))
        return unframe(verdict.result)[0]

    async def query(code: int, request: bytes) -> bytes:
        outcome = world.ask(code, request, query_id=world.revision)
        if outcome.deferred:
            if not world.timers[0].is_cancelled:
                world.timers[0].cancel()
                world.timers[-1].call()
            else:
                world.complete(world.machine.last_generation)
            outcome = world.followed.pop()
        for error in outcome.errors:
            raise Refusal.from_error(errors_pb2.Error.FromString(error.error))
        return unframe(outcome.results)[0]

    return LocalSnapshotApi(submit, query)


async def test_local_api() -> None:
    """In process the same commands and reads are called, and answered in the mux's values."""
    world = World()
    api = _api(world)
    assert (await api.current()).generation == 0
    assert await api.create(RetentionClass.PINNED) == 1
    with pytest.raises(Refusal) as caught:
        await api.create()
    assert caught.value.reason == Reason.REASON_SNAPSHOT_IN_PROGRESS
    # The first wait ends at the deadline of a read, and is begun anew.
    current = await api.current(wait=True)
    assert (current.state, current.retention) == (SnapshotState.COMPLETED, RetentionClass.PINNED)
    assert await api.create() == 2
    world.complete(2)
    assert await api.latest_completed() == await api.get(2)
    page = await api.list(page_size=1)
    assert [s.generation for s in page.snapshots] == [2]
    last = await api.list(page_size=1, page_token=page.next_page_token)
    assert ([s.generation for s in last.snapshots], last.next_page_token) == ([1], "")
    assert await api.lookup_generation(Stage.USERS) == 2
    await api.set_retention(1, RetentionClass.LAST)
    assert await api.prune(1, validate_only=True) == (1,)
    await api.delete(1)
    assert await api.prune(1) == ()
    with pytest.raises(Refusal) as caught:
        await api.get(1)
    assert caught.value.reason == Reason.REASON_SNAPSHOT_NOT_FOUND
