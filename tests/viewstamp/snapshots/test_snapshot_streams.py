"""The coordinator's two snapshot streams over a real gRPC server: permissions and content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final, cast

import grpc
import grpc.aio
import pytest

from coordinator.gateway import snapshot_streams
from coordinator.gateway.caller_calls import Callers
from coordinator.gateway.principal import Authenticator
from coordinator.gateway.snapshot_streams import DOWNLOAD_PATH, VERIFY_PATH, SnapshotStreams
from tests.viewstamp.snapshots.fake_snapshots import (
    CHUNK_BYTES,
    DirectoryGeneration,
    DirectoryProvider,
    FakeRoutes,
    FakeStages,
    SnapshotDomain,
)
from tests.viewstamp.snapshots.generations import CLUSTER_ID, SnapshotDirectory
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as snapshots_pb2
from viewstamp.client import StreamBroken, TimedOut
from viewstamp.client.streaming import ServerStreams
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoints
from viewstamp.errors import Refusal
from viewstamp.tokens import sign

KEY: Final = bytes(range(32))
NOW_US: Final = 1_000
EXPIRES_US: Final = 2_000
ROOT, ANN = 0, 1


class Gateway:
    """A server with the two streams, and the calls of a test."""

    def __init__(self, replica: SnapshotDirectory) -> None:
        self.domain = SnapshotDomain(replica)
        self.stages = FakeStages(self.domain)
        self.provider = DirectoryProvider(replica, self.domain)
        self.is_serving = True
        self.now_us = NOW_US
        handlers = SnapshotStreams(
            CLUSTER_ID,
            Callers(
                cast(Any, FakeRoutes()),
                Authenticator(KEY, CLUSTER_ID, lambda: self.now_us),
                cast(Any, self.stages),
                cast(Any, self.stages),
            ),
            self.provider,
            self._check_serving,
        ).handlers()
        self._server = grpc.aio.server()
        service, _, _ = VERIFY_PATH[1:].partition("/")
        methods = {path.rpartition("/")[2]: handler for path, handler in handlers.items()}
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, methods),)
        )
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    async def __aenter__(self) -> Gateway:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    def _check_serving(self) -> None:
        if not self.is_serving:
            raise Refusal(Reason.REASON_VIEW_CHANGE, "the replica is not in service: try again")

    def stream(
        self, request: Any, *, user_id: int = ROOT, timeout_s: float | None = 30.0
    ) -> AsyncIterator[Any]:
        """Call as a user, as the client does."""
        identity = AccessTokenSource(
            Credentials(access_token=sign(KEY, CLUSTER_ID, user_id, 1, EXPIRES_US))
        )
        return ServerStreams(Endpoints([self.address]), identity).open(request, timeout_s)

    async def all(self, request: Any, *, user_id: int = ROOT) -> list[Any]:
        """Return every message that answers a request."""
        return [message async for message in self.stream(request, user_id=user_id)]


@pytest.fixture
async def gateway(replica: SnapshotDirectory) -> AsyncIterator[Gateway]:
    """A running gateway over generations 1 and 2."""
    async with Gateway(replica) as running:
        yield running


VERIFY: Final = snapshots_pb2.VerifySnapshotRequest(generation=2)
DOWNLOAD: Final = snapshots_pb2.DownloadSnapshotRequest(generation=2)


async def test_download_sends_every_file(gateway: Gateway, replica: SnapshotDirectory) -> None:
    """Files come whole and in order, the manifest last, with their sizes and the whole's."""
    messages = await gateway.all(DOWNLOAD)
    found: dict[str, bytes] = {}
    for message in messages:
        assert message.offset == len(found.get(message.file, b""))
        assert 0 < len(message.data) <= CHUNK_BYTES
        found[message.file] = found.get(message.file, b"") + message.data
    sizes = {(message.file, message.file_bytes) for message in messages}
    assert sizes == {(name, len(data)) for name, data in found.items()}
    assert found.items() <= replica.files().items()
    assert list(found)[-1].startswith("manifests/")
    assert {message.total_bytes for message in messages} == {sum(map(len, found.values()))}


@pytest.mark.parametrize("request_", [VERIFY, DOWNLOAD], ids=["verify", "download"])
async def test_first_message_has_the_header(gateway: Gateway, request_: Any) -> None:
    """The first message alone says where in the log the caller was answered."""
    first, *rest = await gateway.all(request_)
    assert first.header.cluster_id == CLUSTER_ID
    assert (first.header.view, first.header.op, first.header.revision) == (3, 9, 41)
    assert not any(message.HasField("header") for message in rest)


async def test_verify_counts_down(gateway: Gateway) -> None:
    """Each file has a verdict, and the last message says the whole."""
    *files, last = await gateway.all(VERIFY)
    assert [message.files_left for message in files] == list(range(7, -1, -1))
    assert all(list(message.copies) == ["intact"] * 3 for message in files)
    assert last.is_intact
    assert not last.file
    assert not last.problems


async def test_zero_is_the_newest_completed(gateway: Gateway) -> None:
    """Generation 0 stands for the newest completed one, even while another is being written."""
    newest = snapshots_pb2.Snapshot(generation=3, state=snapshots_pb2.SNAPSHOT_STATE_CREATED)
    gateway.domain.snapshots[3] = newest
    messages = await gateway.all(snapshots_pb2.DownloadSnapshotRequest())
    assert messages[-1].file.endswith("2.manifest")


async def test_streams_decides_who_may(gateway: Gateway) -> None:
    """Each call is authorized by a linearizable read, with the caller's own stamp: no command."""
    await gateway.all(VERIFY)
    assert gateway.stages.commands == []
    assert gateway.stages.authorized == [(ROOT, 1)]


def out_of_service(gateway: Gateway) -> None:
    """Let the replica be in a view change."""
    gateway.is_serving = False


def without_permission(gateway: Gateway) -> None:
    """Take the permission from ann."""
    gateway.stages.forbidden.add(ANN)


def expired(gateway: Gateway) -> None:
    """Let time pass."""
    gateway.now_us = EXPIRES_US


def without_snapshots(gateway: Gateway) -> None:
    """Forget every generation."""
    gateway.domain.snapshots.clear()


def failed(gateway: Gateway) -> None:
    """Let generation 2 have failed."""
    gateway.domain.snapshots[2].state = snapshots_pb2.SNAPSHOT_STATE_FAILED


NEWEST: Final = snapshots_pb2.VerifySnapshotRequest()
UNKNOWN: Final = snapshots_pb2.DownloadSnapshotRequest(generation=9)


@pytest.mark.parametrize(
    ("fault", "request_", "reason", "text"),
    [
        (out_of_service, VERIFY, "VIEW_CHANGE", "not in service"),
        (without_permission, VERIFY, "PERMISSION_DENIED", "manage_servers"),
        (without_permission, DOWNLOAD, "PERMISSION_DENIED", "manage_servers"),
        (expired, DOWNLOAD, "UNAUTHENTICATED", "expired"),
        (without_snapshots, NEWEST, "SNAPSHOT_NOT_FOUND", "no snapshot is completed yet"),
        (failed, VERIFY, "SNAPSHOT_NOT_FOUND", "snapshot 2 is FAILED, and only a COMPLETED one"),
        (lambda _: None, UNKNOWN, "SNAPSHOT_NOT_FOUND", "there is no snapshot 9"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or None,
)
async def test_refusals(
    gateway: Gateway, fault: Callable[[Gateway], None], request_: Any, reason: str, text: str
) -> None:
    """Refusals come before any file is touched, with a reason."""
    fault(gateway)
    with pytest.raises(Refusal, match=text) as refused:
        await gateway.all(request_, user_id=ANN)
    assert refused.value.name == reason
    assert gateway.provider.was_pinned == 0


@pytest.mark.parametrize(
    ("path", "payload", "metadata", "code"),
    [
        (VERIFY_PATH, b"\xff", True, grpc.StatusCode.INVALID_ARGUMENT),
        (DOWNLOAD_PATH, b"\x18", True, grpc.StatusCode.INVALID_ARGUMENT),
        (DOWNLOAD_PATH, b"", False, grpc.StatusCode.UNAUTHENTICATED),
    ],
)
async def test_malformed_calls(
    gateway: Gateway, path: str, payload: bytes, metadata: bool, code: grpc.StatusCode
) -> None:
    """Bytes that are no request, and calls without a token, end with a status."""
    token = (
        (("authorization", f"Bearer {sign(KEY, CLUSTER_ID, ROOT, 1, EXPIRES_US)}"),)
        if metadata
        else ()
    )
    async with grpc.aio.insecure_channel(gateway.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            call: Any = channel.unary_stream(path)
            await call(payload, metadata=token).read()
        assert refused.value.code() is code


class Held(DirectoryGeneration):
    """A generation whose files stop coming after the first chunk."""

    async def read(
        self, file: Any, chunk_bytes: int, offset: int = 0, *, is_verified: bool = False
    ) -> AsyncGenerator[bytes, None]:
        """Yield one chunk, then wait for ever."""
        async for chunk in super().read(file, chunk_bytes, offset, is_verified=is_verified):
            yield chunk
            await asyncio.Event().wait()


# The limit, its name, and why a stream beyond it is refused.
PLACES = {
    "in all": ("SNAPSHOT_STREAMS_MAX", Reason.REASON_OVERLOADED, "2 snapshots are being verified"),
    "of one user": (
        "SNAPSHOT_STREAMS_PER_USER_MAX",
        Reason.REASON_QUOTA_EXCEEDED,
        "user 0 verifies or downloads 2 snapshots already",
    ),
}


@pytest.mark.parametrize("places", PLACES)
async def test_places_are_few_and_given_back(
    places: str, gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit a stream is refused; one that its caller leaves returns place and pin."""
    limit, reason, why = PLACES[places]
    for name, _, _ in PLACES.values():
        monkeypatch.setattr(snapshot_streams, name, 2 if name == limit else 9)
    monkeypatch.setattr("tests.viewstamp.snapshots.fake_snapshots.DirectoryGeneration", Held)
    held = [gateway.stream(DOWNLOAD) for _ in range(2)]
    for stream in held:
        await anext(stream)
    assert gateway.provider.pins == 2
    with pytest.raises(Refusal, match=why) as refused:
        await anext(gateway.stream(DOWNLOAD))
    assert refused.value.reason == reason
    assert refused.value.details["share"] == "snapshot_streams"
    assert int(refused.value.details["retry_delay_ms"]) > 0
    for stream in held:
        await stream.aclose()  # type: ignore[attr-defined]
    await gateway.provider.until_released()
    again = gateway.stream(DOWNLOAD)
    await anext(again)
    await again.aclose()  # type: ignore[attr-defined]


async def test_a_place_is_of_whoever_has_it(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user at their share keeps no other out; a user without permission waits for no place."""
    monkeypatch.setattr(snapshot_streams, "SNAPSHOT_STREAMS_PER_USER_MAX", 1)
    monkeypatch.setattr(snapshot_streams, "SNAPSHOT_STREAMS_MAX", 2)
    monkeypatch.setattr("tests.viewstamp.snapshots.fake_snapshots.DirectoryGeneration", Held)
    held = [gateway.stream(DOWNLOAD, user_id=user_id) for user_id in (ROOT, ANN)]
    for stream in held:
        await anext(stream)
    gateway.stages.forbidden.add(ANN)
    with pytest.raises(Refusal) as refused:
        await anext(gateway.stream(VERIFY, user_id=ANN))
    assert refused.value.name == "PERMISSION_DENIED"
    for stream in held:
        await stream.aclose()  # type: ignore[attr-defined]


async def test_silent_streams_time_out(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client waits for each message no longer than its timeout."""
    monkeypatch.setattr("tests.viewstamp.snapshots.fake_snapshots.DirectoryGeneration", Held)
    stream = gateway.stream(DOWNLOAD, timeout_s=2.0)
    await anext(stream)
    with pytest.raises(TimedOut, match=r"no message of the answer came within 2 s"):
        await anext(stream)


async def test_broken_streams_are_told(gateway: Gateway, replica: SnapshotDirectory) -> None:
    """A stream that breaks after its first message differs from one that never began."""
    (replica.path / "faults").write_text("break")
    with pytest.raises(StreamBroken, match="the answers broke off"):
        await gateway.all(DOWNLOAD)
    assert gateway.provider.pins == 0
