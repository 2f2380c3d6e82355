"""The parts of a coordinator for the snapshot streams: generations on disk, without a log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from coordinator.gateway.reads import LINEARIZABLE
from coordinator.gateway.shares import Taken
from coordinator.replica.batcher import AnsweredSpan, LooseCommand, Reply
from coordinator.snapshot.ports import CopyVerdicts, SnapshotFile
from testkit.api_methods import methods_by_request
from tests.viewstamp.client.fake_domain import Domain
from tests.viewstamp.snapshots.generations import SnapshotDirectory
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.errors import Refusal
from viewstamp.format.manifest import sections
from viewstamp.framing import EMPTY_FRAME, frame, unframe
from viewstamp.routing import Method, MethodKind
from viewstamp.snapshots.copies import INTACT, Copies
from viewstamp.snapshots.generation import Generation
from viewstamp.snapshots.verify import FileVerdict, check_sections, verify
from viewstamp.tokens import AccessToken

# Small, so that files of a test come in several chunks.
CHUNK_BYTES: Final = 100
METHODS: Final[dict[int, Method]] = {m.code: m for m in methods_by_request().values()}
FAULTS: Final = "faults"
# Log time of every command: 1 January 2026.
NOW: Final = 1_767_225_600_000_000


class SnapshotDomain(Domain):
    """The catalog of a replica's generations. Words in its file `faults` plant faults."""

    def __init__(self, replica: SnapshotDirectory) -> None:
        super().__init__()
        self._replica = replica
        self._waited = 0
        self.snapshots = {
            number: _completed(replica, number) for number in range(1, replica.generation + 1)
        }

    def has_fault(self, word: str) -> bool:
        """Whether a fault is planted now."""
        file = self._replica.path / FAULTS
        return file.exists() and word in file.read_text().split()

    def _CreateSnapshot(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        if self._newest().state == snapshots_pb2.SNAPSHOT_STATE_CREATED:
            raise Refusal(Reason.REASON_SNAPSHOT_IN_PROGRESS, "generation 3 is being written")
        number = max(self.snapshots) + 1
        if request.validate_only:
            return snapshots_pb2.CreateSnapshotResponse(generation=number)
        self.snapshots[number] = snapshots_pb2.Snapshot(
            generation=number,
            state=snapshots_pb2.SNAPSHOT_STATE_CREATED,
            retention=request.retention,
            kept_until=_kept_until(request.keep_for_ms),
        )
        return snapshots_pb2.CreateSnapshotResponse(generation=number)

    def _GetCurrentSnapshot(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        newest = self._newest()
        if request.wait and not newest.decided_at:
            self._waited += 1
            if self._waited == 1:
                raise Refusal(Reason.REASON_READ_DEADLINE, "not decided within 5000 ms")
            if self._waited == 3:
                self._decide(newest)
        return snapshots_pb2.GetCurrentSnapshotResponse(snapshot=newest)

    def _GetSnapshot(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        return snapshots_pb2.GetSnapshotResponse(snapshot=self._get(request.generation))

    def _GetLatestSnapshot(self, _: Any) -> Any:  # noqa: N802 - named as the RPC
        return snapshots_pb2.GetLatestSnapshotResponse(snapshot=self._latest())

    def _ListSnapshots(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        start = int(request.page_token or 0)
        newest_first = sorted(self.snapshots, reverse=True)
        rest = "" if start + 1 >= len(newest_first) else str(start + 1)
        page = [self.snapshots[number] for number in newest_first[start : start + 1]]
        return snapshots_pb2.ListSnapshotsResponse(snapshots=page, next_page_token=rest)

    def _LookupGeneration(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        assert request.stage == routing_pb2.STAGE_USERS
        return snapshots_pb2.LookupGenerationResponse(generation=self._latest().generation)

    def _DeleteSnapshot(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        found = self._get(request.generation)
        if found.generation == self._latest().generation:
            raise Refusal(Reason.REASON_SNAPSHOT_IN_USE, "it is the last good one")
        _check_revision(found, request)
        if not request.validate_only:
            del self.snapshots[found.generation]
        return snapshots_pb2.DeleteSnapshotResponse()

    def _PruneSnapshots(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        gone = [
            number
            for number in sorted(self.snapshots, reverse=True)[request.keep_last :]
            if self.snapshots[number].retention != snapshots_pb2.RETENTION_CLASS_PINNED
        ]
        for number in gone if not request.validate_only else ():
            del self.snapshots[number]
        return snapshots_pb2.PruneSnapshotsResponse(generations=sorted(gone))

    def _SetSnapshotRetention(self, request: Any) -> Any:  # noqa: N802 - named as the RPC
        found = self._get(request.generation)
        _check_revision(found, request)
        if request.validate_only:
            return snapshots_pb2.SetSnapshotRetentionResponse()
        found.retention, found.kept_until = request.retention, _kept_until(request.keep_for_ms)
        return snapshots_pb2.SetSnapshotRetentionResponse()

    def _decide(self, snapshot: snapshots_pb2.Snapshot) -> None:
        snapshot.decided_at = 1
        snapshot.state = snapshots_pb2.SNAPSHOT_STATE_COMPLETED
        if self.has_fault("fail"):
            snapshot.state = snapshots_pb2.SNAPSHOT_STATE_FAILED
            snapshot.failure = "planted: users did not answer"

    def _get(self, generation: int) -> snapshots_pb2.Snapshot:
        if generation not in self.snapshots:
            raise Refusal(
                Reason.REASON_SNAPSHOT_NOT_FOUND,
                f"there is no snapshot {generation}",
                generation=generation,
            )
        return self.snapshots[generation]

    def _newest(self) -> snapshots_pb2.Snapshot:
        return self.snapshots[max(self.snapshots)]

    def _latest(self) -> snapshots_pb2.Snapshot:
        completed = [
            snapshot
            for snapshot in self.snapshots.values()
            if snapshot.state == snapshots_pb2.SNAPSHOT_STATE_COMPLETED
        ]
        empty = snapshots_pb2.Snapshot(state=snapshots_pb2.SNAPSHOT_STATE_COMPLETED)
        return max(completed, key=lambda snapshot: snapshot.generation, default=empty)


def _check_revision(found: snapshots_pb2.Snapshot, request: Any) -> None:
    expected = request.expected_revision if request.HasField("expected_revision") else None
    if expected not in (None, found.modified_revision):
        raise Refusal.of(Reason.REASON_REVISION_MISMATCH, "snapshot")


def _kept_until(keep_for_ms: int) -> int:
    return NOW + keep_for_ms * 1_000 if keep_for_ms else 0


def _completed(replica: SnapshotDirectory, number: int) -> snapshots_pb2.Snapshot:
    manifest = Generation(Copies(replica.copies), number).manifest
    return snapshots_pb2.Snapshot(
        generation=number,
        state=snapshots_pb2.SNAPSHOT_STATE_COMPLETED,
        cut_op=manifest.cut_op,
        cut_revision=manifest.cut_revision,
        root=manifest.root,
        created_at=manifest.timestamp,
        decided_at=manifest.timestamp,
        retention=snapshots_pb2.RETENTION_CLASS_LAST,
        tasks=[
            snapshots_pb2.SnapshotTask(
                stage=stage,  # type: ignore[arg-type]
                applied_revision=section.applied_revision,
                state_digest=section.state_digest,
                entities=sum(count.entities for count in section.kinds),
                size_bytes=sum(layer.size_bytes for layer in section.layers),
            )
            for stage, section in sections(manifest)
        ],
    )


class FakeRoutes:
    """Claims every public method."""

    def public_code(self, code: int, kind: MethodKind) -> Method:
        """Return the method of a code."""
        assert METHODS[code].kind is kind
        return METHODS[code]


class FakeStages:
    """Answers commands and reads at once; `forbidden` users have no manage_servers."""

    def __init__(self, domain: SnapshotDomain) -> None:
        self.domain = domain
        self.forbidden: set[int] = set()
        self.commands: list[LooseCommand] = []
        self.authorized: list[tuple[int, int]] = []

    def submit_loose(self, command: LooseCommand) -> Taken:
        """Decide a command."""
        self.commands.append(command)
        command.future.set_result(self._reply(command.code, command.item))
        return (command.user_id, 1, len(command.item), 0)

    def settle_loose(self, taken: Taken) -> None:
        """Never called: nobody waits for a command any more."""

    async def start_spans(
        self, spans: Sequence[Any], principal: AccessToken, session_id: int, level: object
    ) -> Reply:
        """Answer a read; one that demands manage_servers must see all that was decided."""
        if spans[0].gate == routing_pb2.GATE_MANAGE_SERVERS:
            assert level == LINEARIZABLE
            self.authorized.append((principal.user_id, principal.credential_revision))
            if principal.user_id in self.forbidden:
                refusal = Refusal(Reason.REASON_PERMISSION_DENIED, "manage_servers is needed")
                return Reply(3, 9, 40, (), refusal.to_answer())
        return self._reply(spans[0].method.code, unframe(spans[0].items)[0])

    def _reply(self, code: int, item: bytes) -> Reply:
        try:
            response, _ = self.domain.call(METHODS[code], item)
        except Refusal as refusal:
            return Reply(3, 9, 41, (AnsweredSpan(EMPTY_FRAME, ()),), refusal.to_answer())
        return Reply(3, 9, 41, (AnsweredSpan(frame(response.SerializeToString()), ()),))


class DirectoryProvider:
    """Serves the files of a replica's first copy directory. `pins` counts open contexts."""

    def __init__(self, replica: SnapshotDirectory, domain: SnapshotDomain) -> None:
        self._replica = replica
        self._domain = domain
        self.pins = 0
        self.was_pinned = 0
        self._released = asyncio.Event()

    async def until_released(self) -> None:
        """Wait until no generation is pinned."""
        while self.pins:
            self._released.clear()
            await self._released.wait()

    @asynccontextmanager
    async def pinned(self, generation: int) -> AsyncIterator[DirectoryGeneration]:
        """Keep a generation."""
        self.pins += 1
        self.was_pinned += 1
        try:
            yield DirectoryGeneration(self._replica, self._domain, generation)
        finally:
            self.pins -= 1
            self._released.set()


class DirectoryGeneration:
    """One generation of a replica's copy directories; a bad first copy is repaired."""

    def __init__(self, replica: SnapshotDirectory, domain: SnapshotDomain, number: int) -> None:
        self._replica = replica
        self._domain = domain
        self._number = number
        names = (verdict.file for verdict in self._verdicts())
        manifest, *layers = (
            SnapshotFile(name, (replica.copies[0] / name).stat().st_size) for name in names
        )
        self.files: Sequence[SnapshotFile] = [*layers, manifest]

    async def read(
        self, file: SnapshotFile, chunk_bytes: int, offset: int = 0, *, is_verified: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield a file in small chunks."""
        assert chunk_bytes >= CHUNK_BYTES
        data = (self._replica.copies[0] / file.name).read_bytes()[offset:]
        for offset in range(0, len(data), CHUNK_BYTES):
            yield data[offset : offset + CHUNK_BYTES]
            if self._domain.has_fault("break") and file is self.files[3]:
                raise RuntimeError("planted: the disk is gone")

    async def verify(self) -> AsyncGenerator[CopyVerdicts, None]:
        """Look at copies, and put a good one in the place of a bad first one."""
        for verdict in self._verdicts():
            copies = list(verdict.copies)
            if copies[0] != INTACT and INTACT in copies:
                good = self._replica.copies[copies.index(INTACT)] / verdict.file
                (self._replica.copies[0] / verdict.file).write_bytes(good.read_bytes())
                copies[0] = f"{copies[0]}; repaired"
            wrong = tuple(text for text in copies[1:] if text != INTACT)
            yield CopyVerdicts(verdict.file, tuple(copies), wrong)

    async def check_sections(self) -> Sequence[str]:
        """Recompute digests."""
        return check_sections(Generation(Copies(self._replica.copies), self._number))

    def _verdicts(self) -> list[FileVerdict]:
        found = verify(Copies(self._replica.copies), self._number)
        return [verdict for verdict in found if isinstance(verdict, FileVerdict)]
