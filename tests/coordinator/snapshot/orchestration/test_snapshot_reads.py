"""Reads of snapshots through the catalog stage: one by one, in pages, and waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.message import Message

from coordinator.base.alarms import Alarms
from coordinator.base.roster import Roster
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
    TaskSnapshot,
)
from coordinator.mux.sessions import SessionRefused
from coordinator.mux.stage import STAGES, Stage
from coordinator.stages.catalog_codec import CATALOG_PARSERS
from coordinator.stages.codec import ProtobufCodec
from tests.coordinator.snapshot.orchestration.orchestra import task, tasks
from viewstamp import limits
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.client.consistency import Consistency
from viewstamp.client.methods import method_of
from viewstamp.client.snapshots import SnapshotApi
from viewstamp.errors import Refusal
from viewstamp.framing import frame_all, unframe
from viewstamp.routing import MethodKind

CURRENT, GET, LIST, LATEST, LOOKUP = 460, 461, 462, 463, 464
WAIT = pb.GetCurrentSnapshotRequest(wait=True).SerializeToString()
BAD = b"\xff"


class FakeTimer:
    """A call of the test, or a cancelled one."""

    def __init__(self, delay_ms: int, call: Callable[[], None]) -> None:
        """Begin to wait."""
        self.delay_ms = delay_ms
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        """Stop waiting."""
        self.is_cancelled = True


def stage_over(*reads: SnapshotReads) -> ClusterStage:
    """Return the catalog stage, which leads to these reads."""
    nothing: Any = None
    alarms, roster = Alarms(lambda: 0), Roster.founding(0, 1)
    return ClusterStage(
        *(nothing, nothing, nothing, alarms, {}, lambda: 0, list, roster, bytes(16)), reads=reads
    )


class SnapshotReadsTrial:
    """A catalog machine, and reads of it through the catalog stage."""

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
            place = (self.revision, self.revision, self.revision, limits.FEATURE_LEVEL_MAX)
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
    world = SnapshotReadsTrial()
    assert set(world.reads.codes) == {CURRENT, GET, LIST, LATEST, LOOKUP}
    with pytest.raises(ValueError, match="answered already"):
        stage_over(world.reads, world.reads)


def test_before_the_first() -> None:
    """Before the first snapshot, generation 0, completed and empty, is current and latest."""
    world = SnapshotReadsTrial()
    for code in (CURRENT, LATEST):
        (encoded,) = unframe(world.ask(code, b"").results)
        snapshot = pb.GetLatestSnapshotResponse.FromString(encoded).snapshot
        assert (snapshot.generation, snapshot.state) == (0, pb.SNAPSHOT_STATE_COMPLETED)
    (listed,) = unframe(world.ask(LIST, b"").results)
    assert pb.ListSnapshotsResponse.FromString(listed) == pb.ListSnapshotsResponse()


def test_one_by_one() -> None:
    """A span is answered index by index; a refusal of any origin leaves the rest alone."""
    world = SnapshotReadsTrial()
    world.complete(1)
    wanted, missing = (pb.GetSnapshotRequest(generation=g).SerializeToString() for g in (1, 5))
    outcome = world.ask(GET, missing, wanted, BAD, wanted, refused=(3,))
    assert reasons(outcome) == [
        (0, Reason.REASON_SNAPSHOT_NOT_FOUND),
        (2, Reason.REASON_MALFORMED_REQUEST),
    ]
    empty, found, *rest = map(pb.GetSnapshotResponse.FromString, unframe(outcome.results))
    assert (found.snapshot.root, len(found.snapshot.tasks)) == (b"r" * 32, len(STAGES))
    assert [empty, *rest] == [pb.GetSnapshotResponse()] * 3


def test_latest_is_not_current() -> None:
    """The latest completed generation stays while a newer one is under way, or has failed."""
    world = SnapshotReadsTrial()
    world.complete(1)
    world.command(BeginSnapshot(2, 5, 0), FailSnapshot(2, "why"))
    (latest,) = unframe(world.ask(LATEST, b"").results)
    assert pb.GetLatestSnapshotResponse.FromString(latest).snapshot.generation == 1
    assert world.generations(world.ask(CURRENT, b"")) == [2]


def _pages(world: SnapshotReadsTrial, size: int) -> list[list[int]]:
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
    world = SnapshotReadsTrial()
    for generation in range(1, 5):
        world.complete(generation)
    assert _pages(world, size) == expected


@pytest.mark.parametrize(
    ("size", "token"), [(1001, ""), (1, "!"), (1, "AAAA"), (1, "AAAAAAAAAAH=")]
)
def test_malformed_pages(size: int, token: str) -> None:
    """Pages that are too large, and tokens that are not ours, are refused."""
    request = pb.ListSnapshotsRequest(page_size=size, page_token=token).SerializeToString()
    assert reasons(SnapshotReadsTrial().ask(LIST, request)) == [
        (0, Reason.REASON_MALFORMED_REQUEST)
    ]


def _lookup(world: SnapshotReadsTrial, *stages: int) -> list[int]:
    items = [pb.LookupGenerationRequest(stage=s).SerializeToString() for s in stages]  # type: ignore[arg-type]
    encoded = unframe(world.ask(LOOKUP, *items).results)
    return [pb.LookupGenerationResponse.FromString(each).generation for each in encoded]


def test_lookup() -> None:
    """A section has reached the generation under way if it was reported here, else the previous."""
    world = SnapshotReadsTrial()
    world.complete(1)
    world.command(BeginSnapshot(2, 5, 0))
    world.reported = (task(Stage.STREAMS),)
    assert _lookup(world, *map(int, STAGES)) == [1 + (s is Stage.STREAMS) for s in STAGES]
    world.command(FailSnapshot(2, "why"))
    world.reported = ()
    assert _lookup(world, *map(int, STAGES)) == [2] * len(STAGES)
    outcome = world.ask(LOOKUP, b"")
    assert reasons(outcome) == [(0, Reason.REASON_MALFORMED_REQUEST)]


# --- Waiting -------------------------------------------------------------------------------------


def test_waits_only_while_one_is_under_way() -> None:
    """With nothing under way a waiting read is answered at once."""
    world = SnapshotReadsTrial()
    assert not world.ask(CURRENT, WAIT).deferred
    world.complete(1)
    assert world.generations(world.ask(CURRENT, WAIT)) == [1]


def test_answered_when_decided() -> None:
    """A waiting read is answered with the decision; the reads beside it have their own position."""
    world = SnapshotReadsTrial()
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
    """Failure is a decision, too; the current generation answers for one that is gone."""
    world = SnapshotReadsTrial()
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
    """A waiting read ends at the deadline of any read: it is refused, and leaves nothing."""
    world = SnapshotReadsTrial()
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
    """Waiting reads beyond a limit are refused; the others beside them are not."""
    monkeypatch.setattr(limits, "DEFERRED_QUERIES_MAX", 1)
    world = SnapshotReadsTrial()
    world.command(CreateSnapshot())
    assert world.ask(CURRENT, WAIT).deferred
    outcome = world.ask(CURRENT, WAIT, b"", query_id=2)
    assert reasons(outcome) == [(0, Reason.REASON_OVERLOADED)]
    assert world.generations(outcome) == [0, 1]


# --- In process ----------------------------------------------------------------------------------


class LoopbackCaller:
    """A replacement for the gateway's `CallerCalls` over a catalog alone: its calls never leave."""

    def __init__(self, world: SnapshotReadsTrial) -> None:
        """Call the machine of `world`."""
        self._world = world

    async def call(self, request: Message, *, consistency: Consistency | None = None) -> Any:
        """Apply or read, and return the response; raise the refusal if there is one."""
        method = method_of(request)
        payload = request.SerializeToString()
        is_command = method.kind is MethodKind.COMMAND
        answered = (self._apply if is_command else self._read)(method.code, payload)
        return method.response.FromString(answered)

    def _apply(self, code: int, payload: bytes) -> bytes:
        world = self._world
        world.revision += 1
        place = (world.revision, world.revision, world.revision, limits.FEATURE_LEVEL_MAX)
        verdict = world.machine.apply(CATALOG_PARSERS[code](payload), *place)
        if isinstance(verdict, SessionRefused):
            raise Refusal.from_error(errors_pb2.Error.FromString(verdict.error))
        return unframe(verdict.result)[0]

    def _read(self, code: int, payload: bytes) -> bytes:
        world = self._world
        outcome = world.ask(code, payload, query_id=world.revision)
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


async def test_the_api_without_grpc() -> None:
    """In the process of the catalog the facade makes the same commands and reads."""
    world = SnapshotReadsTrial()
    snapshots = SnapshotApi(LoopbackCaller(world))
    assert (await snapshots.current()).generation == 0
    assert (await snapshots.create(retention=pb.RETENTION_CLASS_PINNED)).generation == 1
    with pytest.raises(Refusal) as caught:
        await snapshots.create()
    assert caught.value.reason == Reason.REASON_SNAPSHOT_IN_PROGRESS
    # The first wait ends at the deadline of a read, and begins again.
    decided = await snapshots.decided(1)
    assert decided.state == pb.SNAPSHOT_STATE_COMPLETED
    assert decided.retention == pb.RETENTION_CLASS_PINNED
    assert (await snapshots.create()).generation == 2
    world.complete(2)
    assert await snapshots.latest() == await snapshots.get(2)
    assert [each.generation async for each in snapshots.list(page_size=1)] == [2, 1]
    assert await snapshots.lookup_generation(routing_pb2.STAGE_USERS) == 2
    await snapshots.set_retention(1, pb.RETENTION_CLASS_LAST)
    assert (await snapshots.prune(keep_last=1, validate_only=True)).generations == [1]
    await snapshots.delete(1)
    assert not (await snapshots.prune(keep_last=1)).generations
    with pytest.raises(Refusal) as caught:
        await snapshots.get(1)
    assert caught.value.reason == Reason.REASON_SNAPSHOT_NOT_FOUND
