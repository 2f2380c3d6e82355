"""What every store promises: the directory, and a store that speaks as S3 does."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from tests.viewstamp.archive.shipped import KEY, ShippedReplica, archived, verified
from viewstamp.archive.archive_errors import StoreUnfit, StoreUnreachable
from viewstamp.archive.directory_store import DirectoryStore
from viewstamp.archive.object_store import (
    ObjectStore,
    StoreTimeouts,
    is_store_address,
    open_store,
)
from viewstamp.archive.s3_store import S3Store

OBJECTS = 7
CALLERS = 4


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """The address of a store like S3, in a thread of this process, with a bucket."""
    with pytest.MonkeyPatch.context() as patch:
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        for name, value in (
            ("AWS_ENDPOINT_URL", address),
            ("AWS_ACCESS_KEY_ID", "name"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_DEFAULT_REGION", "us-east-1"),
        ):
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket="bucket")
        yield address
        server.stop()


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """A store of each kind, at a place of its own."""
    if request.param == "directory":
        return open_store(f"archive:{tmp_path / 'below' / 'archive'}")
    request.getfixturevalue("endpoint")
    return open_store(f"s3://bucket/{tmp_path.name}/")


def test_objects_are_written_whole(store: ObjectStore, tmp_path: Path) -> None:
    """What was put is read, replaced, looked at, listed in order, and deleted."""
    assert store.get("log/a") is None
    assert store.look("log/a") is None
    assert not store.get_file("log/a", tmp_path / "nothing")
    assert list(store.objects("log/")) == []
    store.put("log/b", b"first")
    store.put("log/b", b"second one")
    (tmp_path / "file").write_bytes(b"of a file")
    store.put_file("log/a", tmp_path / "file")
    store.put("other/c", b"")
    assert store.get("log/b") == b"second one"
    assert store.get_file("log/a", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"of a file"
    assert [(each.name, each.stored_bytes) for each in store.objects("log/")] == [
        ("log/a", 9),
        ("log/b", 10),
    ]
    found = store.look("log/b")
    assert found is not None
    assert (found.stored_bytes, found.modified_us > 1_700_000_000_000_000) == (10, True)
    store.delete("log/b")
    store.delete("log/b")
    assert [each.name for each in store.objects("log/")] == ["log/a"]


def test_a_name_is_created_once(store: ObjectStore) -> None:
    """Of several callers at once one creates a name, and the others change nothing."""
    contents = [bytes([number]) * 100 for number in range(CALLERS)]
    with ThreadPoolExecutor(CALLERS) as pool:
        created = list(pool.map(lambda data: store.create("manifests/1", data), contents))
    assert created.count(True) == 1
    assert store.get("manifests/1") == contents[created.index(True)]
    assert not store.create("manifests/1", b"another")


class SmallPages:
    """A client of S3 whose listings have two objects on a page."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def list_objects_v2(self, **asked: Any) -> Any:
        """Return a page."""
        return self._client.list_objects_v2(MaxKeys=2, **asked)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


@pytest.mark.usefixtures("endpoint")
def test_listings_have_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """More objects than a page has are all listed."""
    client = boto3.client("s3")
    monkeypatch.setattr(boto3, "client", lambda *_, **__: SmallPages(client))
    store = S3Store("s3://bucket/many", StoreTimeouts())
    for number in range(OBJECTS):
        store.put(f"log/{number}", b"x")
    assert [each.name for each in store.objects("log/")] == [f"log/{n}" for n in range(OBJECTS)]


@pytest.mark.usefixtures("endpoint")
def test_a_store_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No bucket, no server and no directory are told with the place and what to look at."""
    with pytest.raises(StoreUnreachable, match="s3://nobucket: "):
        S3Store("s3://nobucket", StoreTimeouts()).put("a", b"")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    lone = S3Store("s3://bucket", StoreTimeouts(timeout_ms=100, attempts=1))
    for call in (
        lambda: lone.get("a"),
        lambda: lone.put("a", b""),
        lambda: lone.create("a", b""),
        lambda: list(lone.objects("a/")),
    ):
        with pytest.raises(StoreUnreachable, match=r"127\.0\.0\.1:9"):
            call()
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnreachable, match="file"):
        DirectoryStore(tmp_path / "file").put("a/b", b"")


@pytest.mark.parametrize("place", ["s3://", "s3:///prefix", "http://bucket"])
def test_places_that_are_none(place: str) -> None:
    """A place without a bucket, or of another kind, is refused with what would be right."""
    with pytest.raises(StoreUnfit):
        open_store(place)


def test_a_crash_leaves_no_half_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory has an object under its name once it is whole, and a failed write leaves none."""
    store = DirectoryStore(tmp_path)
    (tmp_path / "source").write_bytes(b"x" * 10)

    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfileobj", failing)
    with pytest.raises(StoreUnreachable, match="No space"):
        store.put_file("log/a", tmp_path / "source")
    assert list((tmp_path / "log").iterdir()) == []
    assert is_store_address("archive:x") and is_store_address("s3://x")
    assert not is_store_address(str(tmp_path))


def test_two_replicas_ship_to_each_store(store: ObjectStore, tmp_path: Path) -> None:
    """An encrypted archive of two shippers is whole in a directory, and in a store like S3."""
    old = ShippedReplica(tmp_path / "old", options={"piece_bytes": 300})
    new = ShippedReplica(tmp_path / "new", replica_id=1, view=1)
    with old.shipper(store, (KEY,)) as first, new.shipper(store, (KEY,)) as second:
        for _ in range(2):
            new.take(old.append(3))
            for shipper in (first, second):
                shipper.round()
    assert archived(store, (KEY,)) == old.entries[:5]
    assert verified(store, (KEY,)).is_whole
