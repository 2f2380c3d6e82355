"""Exports: the content of the tables, the withheld fields, and when one counts as whole."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from google.protobuf.descriptor import FieldDescriptor
from pyarrow import parquet

from tests.viewstamp.snapshots.generations import (
    CLUSTER_ID,
    NOON_US,
    SECRETS,
    U64_MAX,
    SnapshotDirectory,
    by_stage,
    flip,
)
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.format.columns import row_of
from viewstamp.format.kinds import KINDS, KindInfo
from viewstamp.format.manifest import encode_manifest, manifest_name, root_of, sections
from viewstamp.snapshots import durable, export, tables
from viewstamp.snapshots.copies import Copies
from viewstamp.snapshots.entities import SECTION_NAMES
from viewstamp.snapshots.errors import AllCopiesBad, AnalyticsMissing, BadSection, CannotExport
from viewstamp.snapshots.generation import Generation


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return the directory for exports."""
    return tmp_path / "out"


def write(
    replica: SnapshotDirectory, directory: Path, number: int = 2, *, overwrite: bool = False
) -> export.Exported:
    """Export a generation of a replica."""
    generation = Generation(Copies(replica.copies), number)
    return export.export(generation, directory, overwrite=overwrite, progress=lambda _: None)


def rows(directory: Path, table: str) -> list[dict[str, Any]]:
    """Return every row of a table."""
    found: list[dict[str, Any]] = parquet.read_table(
        directory / table, partitioning=None
    ).to_pylist()
    return found


def schema(directory: Path, table: str) -> Any:
    """Return the schema that a table's first part has."""
    return parquet.read_schema(directory / table / "part-00000.parquet")


def everything_in(directory: Path) -> bytes:
    """Return all bytes of an export, tables also decompressed, text and bytes as they are."""
    found = bytearray()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for one in value.values():
                add(one)
        elif isinstance(value, list):
            for one in value:
                add(one)
        else:
            found.extend(value if isinstance(value, bytes) else str(value).encode())
            found.extend(b"\n")

    for path in sorted(directory.rglob("*")):
        if path.is_file():
            found.extend(path.read_bytes())
        if path.suffix == ".parquet":
            add(parquet.read_table(path, partitioning=None).to_pylist())
    return bytes(found)


def test_tables_of_every_kind(replica: SnapshotDirectory, out: Path) -> None:
    """Each kind has a table, empty ones too, and the manifest counts its rows."""
    written = write(replica, out)
    there = {stage for stage, _ in sections(Generation(Copies(replica.copies), 2).manifest)}
    names = {
        f"section={SECTION_NAMES[stage]}/kind={info.name}"
        for (stage, _), info in KINDS.items()
        if stage in there
    }
    assert set(written.rows) == {*names, "layers"}
    for name, count in written.rows.items():
        assert len(rows(out, name)) == count
    manifest = json.loads((out / "manifest.json").read_text())
    assert {table["path"]: table["rows"] for table in manifest["tables"]} == written.rows
    assert sum(written.rows.values()) - written.rows["layers"] == 21
    assert (out / "_SUCCESS").read_bytes() == b""


def test_values_are_exact(replica: SnapshotDirectory, out: Path) -> None:
    """Nested messages, enums, 64-bit integers, bytes and the columns of the cut keep their values.

    Ids in bytes are hexadecimal, absent messages null.
    """
    write(replica, out)
    root, anna = rows(out, "section=users/kind=users")
    assert root["permissions"] is None
    assert anna["username"] == "anna"
    assert anna["status"] == "active"
    assert anna["created_revision"] == U64_MAX
    assert anna["permissions"]["global"]["manage_servers"] is True
    assert anna["permissions"]["streams"][0]["topics"][0]["topic"] == {"id": 7, "name": None}
    assert anna["generation"] == 2
    assert anna["cut_revision"] == 200
    assert int(anna["timestamp"].timestamp() * 1_000_000) == NOON_US + 2
    assert rows(out, "section=sessions/kind=sessions")[0]["nonce"] == "00" * 16
    assert rows(out, "section=streams/kind=access")[0]["permissions"] == b"\x00\xff"
    assert rows(out, "section=catalog/kind=snapshots")[0]["snapshot"]["root"] == "00" * 32
    users = schema(out, "section=users/kind=users")
    assert users.field("created_revision").type == pyarrow.uint64()
    assert users.field("timestamp").type == pyarrow.timestamp("us", tz="UTC")
    assert not users.field("id").nullable
    assert users.field("permissions").nullable


def test_manifest_says_what_was_exported(replica: SnapshotDirectory, out: Path) -> None:
    """The manifest has its schema version, the cut, the sections and the columns of each table."""
    write(replica, out, 1)
    manifest = json.loads((out / "manifest.json").read_text())
    about = Generation(Copies(replica.copies), 1).manifest
    assert manifest["schema_version"] == export.SCHEMA_VERSION == 1
    assert manifest["cluster_id"] == CLUSTER_ID.hex()
    assert (manifest["generation"], manifest["cut_op"], manifest["cut_revision"]) == (1, 10, 100)
    assert manifest["root"] == about.root.hex()
    there = [SECTION_NAMES[stage] for stage, _ in sections(about)]
    assert [part["section"] for part in manifest["sections"]] == there
    assert manifest["sections"][1]["state_digest"] == about.users.state_digest.hex()
    users = next(table for table in manifest["tables"] if table["kind"] == "users")
    assert [column["name"] for column in users["columns"]][:5] == [
        *("generation", "cut_revision", "timestamp", "id", "username")
    ]
    assert users["parts"] == ["part-00000.parquet"]


def test_layers_are_a_table(replica: SnapshotDirectory, out: Path) -> None:
    """Each layer of each chain is a row with its sizes; bases and deltas are distinguished."""
    write(replica, out)
    layers = rows(out, "layers")
    users = [layer for layer in layers if layer["section"] == "users"]
    assert [(layer["position"], layer["is_base"]) for layer in users] == [(0, True), (1, False)]
    assert [layer["base_generation"] for layer in users] == [0, 1]
    assert [layer["entries"] for layer in users] == [5, 1]
    streams = [layer for layer in layers if layer["section"] == "streams"]
    assert [layer["tombstones"] for layer in streams] == [0, 1]
    for layer in layers:
        path = replica.copies[0] / "layers" / f"{layer['digest']}.layer"
        assert path.stat().st_size == layer["size_bytes"]


def test_no_secret_leaves(replica: SnapshotDirectory, out: Path) -> None:
    """No byte string of a field marked debug_redact is anywhere in an export, in no notation."""
    for secret in SECRETS:
        raw = b"".join(canonical_of(replica))
        assert secret in raw  # otherwise there is nothing to find
    write(replica, out)
    found = everything_in(out)
    assert b"anna" in found  # what is there can be found
    for secret in SECRETS:
        assert secret not in found
        assert secret.hex().encode() not in found
    for name in (b"password_hash", b"token_hash", b"results"):
        assert name not in found


def canonical_of(replica: SnapshotDirectory) -> list[bytes]:
    """Return the canonical bytes of every entity of generation 2."""
    generation = Generation(Copies(replica.copies), 2)
    return [
        entry.canonical or b"" for stage in SECTION_NAMES for entry in generation.entries(stage)
    ]


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("is_overwriting", [False, pytest.param(True, marks=pytest.mark.long)])
def test_killed_exports_are_no_exports(
    replica: SnapshotDirectory,
    tmp_path: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_overwriting: bool,
) -> None:
    """Wherever an export ends, `_SUCCESS` exists only if all is there; it can then be
    overwritten."""
    publish = durable.publish
    published = 0

    def killed_at(point: int) -> Callable[..., None]:
        def killed(file: Any, path: Path) -> None:
            nonlocal published
            published += 1
            if published == point:
                raise KilledError
            publish(file, path)

        return killed

    whole = write(replica, tmp_path / "whole").rows
    point = is_whole = 0
    while not is_whole:
        point += 1
        shutil.rmtree(out, ignore_errors=True)
        if is_overwriting:
            write(replica, out, 1)
        published = 0
        with monkeypatch.context() as patch:
            for module in (durable, tables):
                patch.setattr(module, "publish", killed_at(point))
            try:
                is_whole = write(replica, out, overwrite=is_overwriting).rows == whole
            except KilledError:
                assert not (out / "_SUCCESS").exists(), point
    assert point == len(whole) + 3  # one part per table, the manifest, _SUCCESS, and none killed
    assert write(replica, out, overwrite=True).rows == whole


def test_success_is_removed_first(
    replica: SnapshotDirectory, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replacing an export first removes `_SUCCESS`, durably, before deleting anything else."""
    write(replica, out)
    synced: list[bool] = []

    def sync_directory(directory: Path) -> None:
        synced.append(directory == out and (out / "_SUCCESS").exists())

    def rmtree(path: Path) -> None:
        assert synced == [False]
        raise KilledError

    monkeypatch.setattr(export, "sync_directory", sync_directory)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(KilledError):
        write(replica, out, overwrite=True)


def test_directories_that_are_refused(
    replica: SnapshotDirectory, tmp_path: Path, out: Path
) -> None:
    """A directory that is not empty is refused, and nothing that no export wrote is deleted."""
    write(replica, out)
    with pytest.raises(CannotExport, match=r"is not empty: .* is in it"):
        write(replica, out)
    (out / "thesis.txt").write_text("ten years of work")
    with pytest.raises(CannotExport, match=r"holds thesis\.txt, which no export wrote"):
        write(replica, out, overwrite=True)
    assert (out / "_SUCCESS").exists()
    (out / "thesis.txt").unlink()
    (out / "section=elsewhere").symlink_to(replica.path)
    with pytest.raises(CannotExport, match="holds section=elsewhere"):
        write(replica, out, overwrite=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotExport, match="file: "):
        write(replica, tmp_path / "file")


def test_overwriting_replaces_all(replica: SnapshotDirectory, out: Path) -> None:
    """An export that replaces another one leaves nothing of it."""
    write(replica, out)
    (out / "section=users" / "kind=applied").mkdir()
    write(replica, out, 1, overwrite=True)
    assert not (out / "section=users" / "kind=applied").exists()
    assert rows(out, "section=users/kind=users")[1]["username"] == "ann"


def test_without_pyarrow(
    replica: SnapshotDirectory, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra the error names it, and no file was changed."""
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(AnalyticsMissing, match="exports need pyarrow") as refused:
        write(replica, out)
    assert "analytics" in refused.value.next_step
    assert not (out).exists()


def test_bad_files_end_an_export(replica: SnapshotDirectory, out: Path) -> None:
    """A layer without good copies, or layers that do not add up, leave no `_SUCCESS`."""
    generation = Generation(Copies(replica.copies), 2)
    manifest = generation.manifest
    manifest.catalog.state_digest = bytes([7]) * 32
    manifest.root = root_of(manifest)
    name = f"manifests/{manifest_name(2)}"
    replica.write(name, encode_manifest(manifest))
    with pytest.raises(BadSection, match="section catalog does not add up: its digest is"):
        write(replica, out)
    digest = manifest.streams.layers[0].digest.hex()
    for copy in replica.copies:
        flip(copy / "layers" / f"{digest}.layer")
    with pytest.raises(AllCopiesBad):
        write(replica, out, overwrite=True)
    assert not (out / "_SUCCESS").exists()


def test_tables_are_split(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows go into groups and parts of limited size, in order, with none lost and none empty."""
    monkeypatch.setattr(tables, "ROW_GROUP_ROWS_MAX", 10)
    monkeypatch.setattr(tables, "ROW_GROUP_BYTES_MAX", 70)
    monkeypatch.setattr(tables, "PART_BYTES", 200)
    replica = SnapshotDirectory(tmp_path / "data")
    streams = [streams_pb2.StreamEntity(id=1 + n, name=f"stream-{n:04d}") for n in range(240)]
    counters = streams_pb2.StreamsCountersEntity(next_stream_id=241, next_topic_id=1)
    replica.snapshot([*streams, counters])
    write(replica, out, 1)
    table = out / "section=streams" / "kind=streams"
    parts = sorted(table.iterdir())
    found = []
    for part in parts:
        file = parquet.ParquetFile(part)
        sizes = [file.metadata.row_group(n).num_rows for n in range(file.num_row_groups)]
        assert 0 < max(sizes) <= 10
        found += [row["id"] for row in file.read().to_pylist()]
    assert found == list(range(1, 241))
    size_bytes = sum(map(len, by_stage(streams)[3].values()))
    assert 5 < len(parts) <= size_bytes // 200 + 1


def fill(message: Any) -> Any:
    """Set every field of a message, numbers to the largest that there are; return the message."""
    largest = {
        FieldDescriptor.TYPE_UINT32: 2**32 - 1,
        FieldDescriptor.TYPE_UINT64: U64_MAX,
        FieldDescriptor.TYPE_INT32: 2**31 - 1,
        FieldDescriptor.TYPE_INT64: 2**63 - 1,
        FieldDescriptor.TYPE_BOOL: True,
        FieldDescriptor.TYPE_STRING: "ü",
        FieldDescriptor.TYPE_BYTES: b"\xff",
        FieldDescriptor.TYPE_ENUM: 1,
    }
    for field in message.DESCRIPTOR.fields:
        held = getattr(message, field.name)
        if field.message_type is not None:
            fill(held.add() if field.is_repeated else held).SetInParent()
        elif field.is_repeated:
            held.append(largest[field.type])
        else:
            setattr(message, field.name, largest[field.type])
    return message


@pytest.mark.parametrize("info", KINDS.values(), ids=lambda info: info.name)
def test_every_kind_has_a_row_for_its_schema(info: KindInfo) -> None:
    """A message's values fit its columns, filled or empty, and come back as they were."""
    arrow = tables.schema_of_entities(info.message)
    cut = {"generation": U64_MAX, "cut_revision": U64_MAX, "timestamp": 3}
    found = [tables.row_of_entity(each, cut) for each in (info.message(), fill(info.message()))]
    assert [list(row) for row in found] == [arrow.names] * 2
    assert [name for name, value in found[1].items() if not value] == []
    stored = pyarrow.Table.from_pylist(found, schema=arrow)
    stored.validate(full=True)
    plain = [field.name for field in arrow if not pyarrow.types.is_timestamp(field.type)]
    assert stored.select(plain).to_pylist() == [
        {name: row[name] for name in plain} for row in found
    ]


def test_unknown_enum_values_stay_numbers() -> None:
    """An enum value of a later version is exported as its number."""
    found = row_of(streams_pb2.TopicOptions(compression_algorithm=99))  # type: ignore[arg-type]
    assert found["compression_algorithm"] == "99"


def test_documentation_names_everything(replica: SnapshotDirectory, out: Path) -> None:
    """docs/export.md has every table, every key of the manifest and every column of layers."""
    write(replica, out)
    text = (Path(__file__).parents[3] / "docs" / "export.md").read_text()
    manifest = json.loads((out / "manifest.json").read_text())
    names = {*manifest, *manifest["sections"][0]}
    for table in manifest["tables"]:
        names |= {*table, table["kind"] or "layers"}
    names |= {column["name"] for column in manifest["tables"][-1]["columns"]}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []
    assert f"| `schema_version` | {export.SCHEMA_VERSION}:" in text


KILLED = """
import os, signal, sys
from pathlib import Path
from viewstamp.snapshots import durable, export, tables
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.generation import Generation

publish = durable.publish

def killed(file, path):
    if path.name == "manifest.json":
        os.kill(os.getpid(), signal.SIGKILL)
    publish(file, path)

durable.publish = tables.publish = killed
generation = Generation(Copies(copy_directories(Path(sys.argv[1]))), 2)
export.export(generation, Path(sys.argv[2]), overwrite=True, progress=lambda _: None)
"""


def test_sigkill_leaves_no_success(replica: SnapshotDirectory, out: Path) -> None:
    """A process that is killed when all tables are written leaves them without `_SUCCESS`."""
    write(replica, out, 1)
    arguments = [sys.executable, "-c", KILLED, str(replica.path), str(out)]
    killed = subprocess.run(arguments, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(rows(out, "layers")) == 7
    assert not (out / "_SUCCESS").exists()
    assert not (out / "manifest.json").exists()
    assert write(replica, out, overwrite=True).rows["layers"] == 7
