"""A download accepts only bytes that match their names and digests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.viewstamp.snapshots.generations import SnapshotDirectory, flip
from viewstamp.api.snapshots.v1.snapshots_service_pb2 import DownloadSnapshotResponse
from viewstamp.format.manifest import decode_manifest, encode_manifest, manifest_name, root_of
from viewstamp.snapshots.download import Download
from viewstamp.snapshots.errors import BadDownload

MANIFEST = f"manifests/{manifest_name(2)}"


def chunks(name: str, data: bytes, size_bytes: int = 200) -> Iterator[DownloadSnapshotResponse]:
    """Yield a file in chunks."""
    for offset in range(0, len(data), size_bytes):
        yield DownloadSnapshotResponse(
            file=name,
            offset=offset,
            file_bytes=len(data),
            data=data[offset : offset + size_bytes],
        )


def files_of(replica: SnapshotDirectory) -> dict[str, bytes]:
    """Return the files of generation 2, the manifest last."""
    return {
        name: data
        for name, data in replica.files().items()
        if name.startswith("layers") or name == MANIFEST
    }


def receive(directory: Path, files: dict[str, bytes]) -> Download:
    """Download files whole."""
    with Download(directory) as download:
        for name, data in files.items():
            for chunk in chunks(name, data):
                download.receive(chunk)
        download.finish()
        return download


def test_whole_downloads(replica: SnapshotDirectory, tmp_path: Path) -> None:
    """Files arrive byte by byte as sent; a second download keeps the layers, and damaged ones not.

    No temporary file is left.
    """
    files = files_of(replica)
    assert receive(tmp_path / "out", files).generation == 2
    again = receive(tmp_path / "out", files)
    assert (again.files, again.files_kept) == (8, 7)
    first = next(iter(files))
    flip(tmp_path / "out" / first)
    assert receive(tmp_path / "out", files).files_kept == 6
    (tmp_path / "out" / first).write_bytes(b"short")
    assert receive(tmp_path / "out", files).files_kept == 6
    found = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == files


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "layers/../manifests/x",
        "/etc/passwd",
        "layers",
        "layers/",
        f"manifests/{'0' * 64}.layer",
        f"layers/{'0' * 20}.manifest",
        f"layers/{'G' * 64}.layer",
        f"layers/{'0' * 64}.layer/x",
        "",
    ],
)
def test_names_stay_inside(tmp_path: Path, name: str) -> None:
    """A name that is no layer's or manifest's is refused before anything is written."""
    chunk = DownloadSnapshotResponse(file=name, file_bytes=1, data=b"x")
    with Download(tmp_path) as got, pytest.raises(BadDownload, match="is no file of a snapshot"):
        got.receive(chunk)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("offset", 7, "a chunk of .* at 7 of"),
        ("file_bytes", 9, "of 9 bytes came instead of"),
        ("file", MANIFEST, "came instead of 'layers/"),
        ("data", b"", "has 0 bytes"),
        ("data", bytes(5_000), "has 5000 bytes"),
    ],
)
def test_chunks_must_follow(
    replica: SnapshotDirectory, tmp_path: Path, is_there: bool, field: str, value: object, text: str
) -> None:
    """A chunk that leaves a gap, is empty, too long or of another file is refused."""
    if is_there:
        receive(tmp_path / "out", files_of(replica))
    name, data = next(iter(files_of(replica).items()))
    first, second, *_ = chunks(name, data)
    setattr(second, field, value)
    with Download(tmp_path / "out") as download:
        download.receive(first)
        with pytest.raises(BadDownload, match=text):
            download.receive(second)
    assert not list((tmp_path / "out").rglob(".*"))


def test_damage_is_found(replica: SnapshotDirectory, tmp_path: Path) -> None:
    """Bytes that are not those of the name are refused and leave no file."""
    files = files_of(replica)
    for name in (next(iter(files)), MANIFEST):
        damaged = bytearray(files[name])
        damaged[-1] ^= 1
        with Download(tmp_path) as download, pytest.raises(BadDownload, match=name):
            for chunk in chunks(name, bytes(damaged)):
                download.receive(chunk)
        assert not (tmp_path / name).exists()


def test_early_ends_are_told(replica: SnapshotDirectory, tmp_path: Path) -> None:
    """A download without its manifest, or that ends within a file, is not finished."""
    files = files_of(replica)
    name, data = next(iter(files.items()))
    with Download(tmp_path) as download:
        with pytest.raises(BadDownload, match="without a manifest"):
            download.finish()
        download.receive(next(chunks(name, data)))
        with pytest.raises(BadDownload, match=f"ends within {name}"):
            download.finish()
    with Download(tmp_path) as download:
        for each in (MANIFEST, name):
            if each == name:
                with pytest.raises(BadDownload, match="comes after the manifest"):
                    download.receive(next(chunks(name, data)))
            else:
                for chunk in chunks(each, files[each]):
                    download.receive(chunk)


def test_other_snapshots_are_not_replaced(replica: SnapshotDirectory, tmp_path: Path) -> None:
    """The manifest of another cluster's snapshot of the same number stays as it is."""
    files = files_of(replica)
    other = decode_manifest(files[MANIFEST])
    other.timestamp += 1
    other.root = root_of(other)
    receive(tmp_path, {MANIFEST: encode_manifest(other)})
    with pytest.raises(BadDownload, match="is of another snapshot of this number"):
        receive(tmp_path, files)
    assert decode_manifest((tmp_path / MANIFEST).read_bytes()) == other
