"""SnapshotsService over real gRPC, with snapshots that tests can hold under way."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from blake3 import blake3

from tests.processes import snapshots
from tests.processes.callers import Caller, SubmitStream, refused, span
from tests.processes.held_section import MODULES, held
from tests.processes.processes import COORDINATOR, ReplicaProcesses, eventually, replica, unique
from tests.processes.test_process_deaths import an_operator
from tests.viewstamp.cli.conftest import CommandLine, Said
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2 as routing
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.framing import unframe

pytestmark = pytest.mark.xdist_group("processes-snapshot-api")

CREATE_CODE = 401
BEGIN_PATH = "/viewstamp.api.snapshots.v1.SnapshotsService/BeginSnapshot"
FAILED_PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
NOT_FOUND = grpc.StatusCode.NOT_FOUND
INVALID = grpc.StatusCode.INVALID_ARGUMENT
DENIED = grpc.StatusCode.PERMISSION_DENIED
DEADLINE_MS = 300


@pytest.fixture(scope="module")
def served() -> Iterator[ReplicaProcesses]:
    """A replica whose snapshots can be held; each test leaves no snapshot under way."""
    with replica(modules=MODULES) as running:
        with running.root() as root:
            root.create_stream("orders")
        yield running


def lookup(root: Caller, stage: routing.Stage.ValueType) -> int:
    """Return the newest generation that a section has completed."""
    request = pb.LookupGenerationRequest(stage=stage)
    return int(root.call(root.snapshots.LookupGeneration, request).generation)


def latest(root: Caller) -> pb.Snapshot:
    """Read the newest completed generation."""
    found: pb.Snapshot = root.call(
        root.snapshots.GetLatestSnapshot, pb.GetLatestSnapshotRequest()
    ).snapshot
    return found


def delete(root: Caller, generation: int) -> Any:
    """Delete a generation."""
    return root.call(root.snapshots.DeleteSnapshot, pb.DeleteSnapshotRequest(generation=generation))


def prune(root: Caller, *, keep_last: int, validate_only: bool = False) -> list[int]:
    """Prune; return the deleted generations."""
    request = pb.PruneSnapshotsRequest(keep_last=keep_last, validate_only=validate_only)
    return list(root.call(root.snapshots.PruneSnapshots, request).generations)


def pin(root: Caller, generation: int) -> Any:
    """Keep a generation until it is deleted."""
    request = pb.SetSnapshotRetentionRequest(
        generation=generation, retention=pb.RETENTION_CLASS_PINNED
    )
    return root.call(root.snapshots.SetSnapshotRetention, request)


def test_before_the_first() -> None:
    """Without any snapshot there is generation 0, completed and empty, and nothing to verify."""
    with replica() as fresh, fresh.root() as root:
        assert snapshots.listed(root) == []
        for found in (snapshots.current(root), snapshots.current(root, wait=True), latest(root)):
            assert (found.generation, found.state) == (0, snapshots.COMPLETED)
        assert lookup(root, routing.STAGE_USERS) == 0
        with refused() as failure:
            snapshots.verified(root)
        assert tuple(failure) == (NOT_FOUND, "SNAPSHOT_NOT_FOUND")


def shown(served: ReplicaProcesses, tmp_path: Path, *arguments: str) -> Said:
    """Run `viewstamp snapshot ... --data`, with an address where no cluster is."""
    line = CommandLine("127.0.0.1:1", tmp_path)
    return line("snapshot", *arguments, "--data", str(served.data))


def test_catalog_view(tmp_path: Path) -> None:
    """The catalog is read from a directory while its replica runs, and after it was killed."""
    with replica() as served:
        with served.root() as root:
            generation = snapshots.create(root)
            snapshots.decided(root, generation)
            found = snapshots.get(root, generation)

        def newest() -> Any:
            rows = shown(served, tmp_path, "list", "--json").data
            return rows[0] if rows and rows[0]["state"] == "completed" else None

        running = eventually(newest)
        assert (running["generation"], running["root"]) == (generation, found.root.hex())
        shows = ("show", "0")
        # The copies are known once the snapshot is adopted, which comes after its decision.
        eventually(lambda: shown(served, tmp_path, *shows, "--json").data.get("copies"))
        served.kill(COORDINATOR)
        assert found.root.hex() in shown(served, tmp_path, *shows).out
        said = shown(served, tmp_path, *shows, "--json")
        assert len(said.data["copies"]) == 3
        assert json.loads(said.err)["catalog_view"]["op"] >= found.cut_op


@pytest.mark.long
def test_one_at_a_time(served: ReplicaProcesses) -> None:
    """While a snapshot is under way, both ways to ask for another one are refused."""
    with served.root() as root:
        before = latest(root).generation
        stream = SubmitStream(root.with_session())
        ask = span(CREATE_CODE, pb.CreateSnapshotRequest(), pb.CreateSnapshotRequest())
        with held(served):
            (answer,) = stream.ask(1, ask).spans
            results = [pb.CreateSnapshotResponse.FromString(r) for r in unframe(answer.results)]
            generation = results[0].generation
            assert generation > before
            (error,) = answer.errors
            assert (error.index, error.error.reason) == (1, Reason.REASON_SNAPSHOT_IN_PROGRESS)
            with refused() as failure:
                snapshots.create(root)
            assert tuple(failure) == (FAILED_PRECONDITION, "SNAPSHOT_IN_PROGRESS")
            assert failure.it.details["generation"] == str(generation)
            check_under_way(root, generation, before)
            waits = root.snapshots.GetCurrentSnapshot.future(
                pb.GetCurrentSnapshotRequest(wait=True), metadata=root.metadata(), timeout=30
            )
            # This read came later on the same connection and has its answer: so the other one
            # waits.
            assert snapshots.current(root).generation == generation
            assert not waits.done()
            # A retry of the request gets the same generation.
            assert stream.ask(1, ask).spans[0] == answer
        found = waits.result().snapshot
        assert (found.generation, found.state) == (generation, snapshots.COMPLETED)
        assert [task.stage for task in found.tasks] == sorted(task.stage for task in found.tasks)
        assert len(found.tasks) == 5
        assert len(found.root) == 32
        assert lookup(root, routing.STAGE_STREAMS) == generation == latest(root).generation


def check_under_way(root: Caller, generation: int, before: int) -> None:
    """Check a snapshot that waits only for the section of streams."""
    found = eventually(lambda: snapshots.get(root, generation))
    assert (found.state, found.decided_at) == (pb.SNAPSHOT_STATE_CREATED, 0)
    eventually(lambda: lookup(root, routing.STAGE_USERS) == generation)
    eventually(lambda: lookup(root, routing.STAGE_SESSIONS) == generation)
    assert lookup(root, routing.STAGE_STREAMS) == before == latest(root).generation
    cases: list[tuple[Callable[[], Any], grpc.StatusCode, str]] = [
        (lambda: delete(root, generation), FAILED_PRECONDITION, "SNAPSHOT_IN_USE"),
        (lambda: snapshots.verified(root, generation), NOT_FOUND, "SNAPSHOT_NOT_FOUND"),
        (lambda: download(root, generation), NOT_FOUND, "SNAPSHOT_NOT_FOUND"),
    ]
    for call, code, reason in cases:
        with refused() as failure:
            call()
        assert tuple(failure) == (code, reason)


@pytest.mark.long
def test_deadline(served: ReplicaProcesses) -> None:
    """A snapshot that misses its deadline fails, with reason and alarm; the next one completes."""
    impatient = ReplicaProcesses(
        served.directory, modules=MODULES, flags=[f"--snapshot-deadline-ms={DEADLINE_MS}"]
    )
    impatient.processes, impatient.ready = served.processes, served.ready
    served.kill(COORDINATOR)
    with held(served):
        impatient.start(COORDINATOR)
        with served.root() as root:
            generation = snapshots.create(root)
            found = snapshots.decided(root, generation)
            assert found.state == snapshots.FAILED
            assert f"not durable within {DEADLINE_MS} ms" in found.failure
            assert "streams" in found.failure.lower()
            assert root.alarms() == ["ALARM_KIND_SNAPSHOT_FAILED"]
            (alarm,) = root.status().alarms
            assert found.failure in alarm.message
            assert latest(root).generation < generation
            root.create_stream(unique("after"))
        served.kill(COORDINATOR)
    served.start(COORDINATOR)
    with served.root() as root:
        assert snapshots.take(root) == generation + 1
        assert not root.alarms()
        assert snapshots.verified(root)[-1].is_intact
        # A failed snapshot shows its reason until a later one has completed.
        assert snapshots.current(root).generation == generation + 1


@pytest.mark.long
def test_retention(served: ReplicaProcesses) -> None:
    """Generations can be listed in pages, pinned, pruned and deleted; the last good one remains."""
    with served.root() as root:
        taken = [snapshots.take_and_adopt(served, root) for _ in range(4)]
        for page_size in (1, 3, 0):
            assert snapshots.listed(root, page_size)[:4] == taken[::-1]
        pin(root, taken[0])
        everything = snapshots.listed(root)
        doomed = [g for g in everything if g not in (taken[0], taken[2], taken[3])][::-1]
        assert prune(root, keep_last=2, validate_only=True) == doomed
        assert snapshots.listed(root) == everything
        assert prune(root, keep_last=2) == doomed
        assert snapshots.listed(root) == [taken[3], taken[2], taken[0]]
        delete(root, taken[0])
        cases: list[tuple[Callable[[], Any], grpc.StatusCode, str]] = [
            (lambda: delete(root, taken[0]), NOT_FOUND, "SNAPSHOT_NOT_FOUND"),
            (lambda: pin(root, 10**6), NOT_FOUND, "SNAPSHOT_NOT_FOUND"),
            (lambda: snapshots.get(root, taken[1]), NOT_FOUND, "SNAPSHOT_NOT_FOUND"),
            (lambda: delete(root, taken[3]), FAILED_PRECONDITION, "SNAPSHOT_IN_USE"),
            (lambda: prune(root, keep_last=0), INVALID, "MALFORMED_REQUEST"),
            (lambda: lookup(root, routing.STAGE_UNSPECIFIED), INVALID, "MALFORMED_REQUEST"),
            (lambda: snapshots.listed(root, 1001), INVALID, "MALFORMED_REQUEST"),
        ]
        for call, code, reason in cases:
            with refused() as failure:
                call()
            assert tuple(failure) == (code, reason)
        kept = [taken[2], taken[3]]
        for directory in snapshots.copy_directories(served):
            eventually(lambda: manifests(directory) == kept)  # noqa: B023
        assert snapshots.verified(root, taken[2])[-1].is_intact


def manifests(directory: Any) -> list[int]:
    """Return the generations that a copy directory holds."""
    return sorted(int(path.stem) for path in (directory / "manifests").glob("*.manifest"))


def download(root: Caller, generation: int = 0) -> list[pb.DownloadSnapshotResponse]:
    """Download a generation."""
    request = pb.DownloadSnapshotRequest(generation=generation)
    return list(root.call(root.snapshots.DownloadSnapshot, request))


def test_download(served: ReplicaProcesses) -> None:
    """A download has every file of the generation as on disk, with the manifest last."""
    with served.root() as root:
        generation = snapshots.take(root)
        chunks = download(root)
    assert chunks[0].header.revision and not any(c.HasField("header") for c in chunks[1:])
    files: dict[str, bytes] = {}
    for chunk in chunks:
        assert chunk.offset == len(files.setdefault(chunk.file, b""))
        files[chunk.file] += chunk.data
    assert {chunk.total_bytes for chunk in chunks} == {sum(map(len, files.values()))}
    directory = snapshots.copy_directories(served)[0]
    expected = [*snapshots.layers(directory, generation), snapshots.manifest(directory, generation)]
    assert list(files)[-1] == str(expected[-1].relative_to(directory))
    assert {str(p.relative_to(directory)): p.read_bytes() for p in expected} == files
    for path in expected[:-1]:
        assert path.stem == blake3(path.read_bytes()).hexdigest()


def test_permissions(served: ReplicaProcesses) -> None:
    """Reads need read_servers, other methods manage_servers, and nobody may call internal ones."""
    with served.root() as root:
        generation = snapshots.take(root)
        name = unique("plain")
        root.create_user(name, "password")
        plain = root.logged_in(name, "password")
        reader = an_operator(served, root)
        reads: list[Callable[[Caller], Any]] = [
            snapshots.current,
            latest,
            lambda caller: snapshots.get(caller, generation),
            snapshots.listed,
            lambda caller: lookup(caller, routing.STAGE_USERS),
        ]
        writes: list[Callable[[Caller], Any]] = [
            snapshots.create,
            lambda caller: delete(caller, generation),
            lambda caller: prune(caller, keep_last=1, validate_only=True),
            lambda caller: pin(caller, generation),
            snapshots.verified,
            download,
        ]
        before = snapshots.listed(root)
        for caller, calls in ((plain, [*reads, *writes]), (reader, writes)):
            for call in calls:
                with refused() as failure:
                    call(caller)
                assert tuple(failure) == (DENIED, "PERMISSION_DENIED")
        for call in reads:
            assert call(reader) is not None
        with refused() as failure:
            root.raw(BEGIN_PATH, pb.BeginSnapshotRequest(generation=99).SerializeToString())
        assert failure.it.code is grpc.StatusCode.UNIMPLEMENTED
        assert snapshots.listed(root) == before
