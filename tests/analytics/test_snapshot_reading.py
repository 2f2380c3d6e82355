"""Snapshot directories are read in place, only from good copies, and without secrets."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import ArrayType

from analytics.snapshots import columns, entities, reading
from analytics.snapshots.errors import NewerSnapshotError, SnapshotCopyWarning, SnapshotError
from testkit.generators.generations import SnapshotWriter, changes_of
from testkit.generators.history import PASSWORD_HASH, StateLife, write_history
from tests.analytics import snapshot_cases
from tests.analytics.snapshot_cases import rows
from viewstamp.api.users.v1.users_pb2 import PersonalAccessTokenEntity, UserEntity
from viewstamp.format.kinds import KINDS
from viewstamp.format.layer import reader_of
from viewstamp.limits import KIB
from viewstamp.snapshots import columns as exported

LIFE = StateLife(generations=3)
MANIFEST = f"manifests/{3:020d}.manifest"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return a data directory with three generations."""
    write_history(tmp_path / "data", LIFE, seed=5)
    return tmp_path / "data"


def test_entities_are_those_of_the_state(tmp_path: Path) -> None:
    """Every entity of the newest state is read once, decoded, with its size."""
    writer = write_history(tmp_path, LIFE, seed=6)
    found = rows(tmp_path)
    want = [
        (kind, key) for _, state in sorted(writer.states.items()) for kind, key in sorted(state)
    ]
    assert [row["key"] for row in found] == [key for _, key in want]
    assert {row["generation"] for row in found} == {3}
    names = {row["kind"] for row in found}
    assert names <= {info.name for info in KINDS.values()}
    topic = next(row for row in found if row["kind"] == "topics")
    fields = json.loads(topic["entity"])
    assert topic["key"] == fields["stream_id"].to_bytes(8, "big") + fields["id"].to_bytes(8, "big")
    assert topic["bytes"] == 12 + 16 + len(writer.states[3][2, topic["key"]])


def test_secrets_stay_in_the_snapshot(directory: Path) -> None:
    """Hashes of passwords and tokens are in the layers, and in no view of them."""
    layers = b"".join(path.read_bytes() for path in snapshot_cases.layer_paths(directory, 0))
    blocks = [entry for path in snapshot_cases.layer_paths(directory, 0) for entry in _all(path)]
    assert layers
    assert any(PASSWORD_HASH.encode() in canonical for canonical in blocks)
    read = [rows(directory), rows(directory, "facts"), rows(directory, kind="users")]
    read.append(rows(directory, kind="personal_access_tokens"))
    assert all(read)
    assert "hash" not in str(read)
    assert PASSWORD_HASH not in str(read)


def _all(path: Path) -> list[bytes]:
    return [entry.canonical or b"" for entry in reader_of(path.read_bytes()).entries()]


@pytest.mark.parametrize("info", KINDS.values(), ids=lambda info: info.name)
def test_columns_are_those_of_exports(info: Any) -> None:
    """The columns of a kind, lists among them, are the same here and in an export."""
    struct = columns.struct_of(info.message.DESCRIPTOR)
    schema = exported.schema_of(info.message.DESCRIPTOR)
    assert struct.fieldNames() == [field.name for field in schema]
    lists = [field.name for field in struct if isinstance(field.dataType, ArrayType)]
    assert lists == [field.name for field in schema if pyarrow.types.is_list(field.type)]


@pytest.mark.parametrize("copies", [1, 2])
def test_bad_copies_are_passed_over(directory: Path, copies: int) -> None:
    """With bad blocks in some copies the rows are the same, and each bad copy is named."""
    want = rows(directory)
    bad = [snapshot_cases.layer_paths(directory, copy)[0] for copy in range(copies)]
    for path in bad:
        # The first block begins behind the header's 80 bytes.
        snapshot_cases.flip(path, 150)
    with pytest.warns(SnapshotCopyWarning) as caught:
        assert rows(directory) == want
    told = {str(one.message) for one in caught}
    assert len(told) == copies
    for path in bad:
        assert any(str(path) in text and "checksum" in text for text in told)


def test_copies_with_different_bad_blocks_make_a_whole(tmp_path: Path) -> None:
    """Where every copy has a bad block, but not the same one, all entities can be read."""
    large = {(2, bytes([key])): bytes([key]) * 200 * KIB for key in range(3)}
    writer = SnapshotWriter(tmp_path)
    writer.snapshot({3: large}, timestamp_us=1)
    want = rows(tmp_path, "facts", section="streams")
    for copy in range(3):
        path = snapshot_cases.layer_paths(tmp_path, copy)[0]
        snapshot_cases.flip(path, reader_of(path.read_bytes()).blocks[copy].offset + 45)
    with pytest.warns(SnapshotCopyWarning):
        assert rows(tmp_path, "facts", section="streams") == want
    assert [row["bytes"] for row in want] == [12 + 1 + 200 * KIB] * 3


def test_bad_copy_is_told_of_once(tmp_path: Path) -> None:
    """A copy that cannot be opened gives a warning in planning and in reading, not per block."""
    large = {(2, bytes([key])): b"x" * 200 * KIB for key in range(5)}
    SnapshotWriter(tmp_path).snapshot({3: large}, timestamp_us=1)
    snapshot_cases.layer_paths(tmp_path, 0)[0].unlink()
    with pytest.warns(SnapshotCopyWarning) as caught:
        assert len(rows(tmp_path, "facts", section="streams")) == 5
    assert len(caught) == 2


def test_missing_copy_directory_is_told(directory: Path) -> None:
    """An absent copy directory causes a warning, and the answer is complete."""
    want = rows(directory)
    shutil.rmtree(directory / "snapshots" / "copy-0")
    with pytest.warns(SnapshotCopyWarning, match="copy-0"):
        assert rows(directory) == want


def test_no_good_copy_is_an_error(directory: Path) -> None:
    """If all copies of a layer are bad, the error names each of them and says what to do."""
    paths = [snapshot_cases.layer_paths(directory, copy)[0] for copy in range(3)]
    for path in paths:
        snapshot_cases.flip(path, 150)
    with pytest.raises(SnapshotError, match="no good copy") as caught:
        rows(directory)
    assert all(str(path) in str(caught.value) for path in paths)
    assert "Read another generation" in str(caught.value)


def test_newer_formats_are_not_called_rot(directory: Path) -> None:
    """Intact files of a later format version ask for an upgrade, be it manifest or layer."""
    for path in snapshot_cases.all_copies(directory, MANIFEST):
        snapshot_cases.make_newer_manifest(path)
    with pytest.raises(NewerSnapshotError, match="Upgrade this program"):
        rows(directory)
    assert rows(directory, generation="2")
    for copy in range(3):
        for path in snapshot_cases.layer_paths(directory, copy):
            snapshot_cases.make_newer_layer(path)
    with pytest.raises(NewerSnapshotError, match="format version 2"):
        rows(directory, generation="2")


def test_unknown_kinds_ask_for_an_upgrade(tmp_path: Path) -> None:
    """A kind that a newer version wrote is refused where it must be decoded, counted elsewhere."""
    SnapshotWriter(tmp_path).snapshot({3: {(9, b"k"): b"new"}}, timestamp_us=1)
    with pytest.raises(NewerSnapshotError, match="entities of kind 9"):
        rows(tmp_path)
    assert [(row["kind"], row["entities"]) for row in rows(tmp_path, "sections")] == [("kind 9", 1)]
    assert [row["bytes"] for row in rows(tmp_path, "facts")] == [12 + 1 + 3]


def test_ids_beyond_the_counters_are_refused(tmp_path: Path) -> None:
    """An id that no counter can have handed out is an error, not a negative number."""
    user = changes_of([UserEntity(id=2**63, username="x")])
    SnapshotWriter(tmp_path).snapshot(user, timestamp_us=1)
    with pytest.raises(SnapshotError, match=str(2**63)):
        rows(tmp_path, "facts")


def test_tokens_that_never_end_have_no_expiry(tmp_path: Path) -> None:
    """An expiry of 0 is none, and one beyond BIGINT is the greatest."""
    tokens = [
        PersonalAccessTokenEntity(user_id=1, name=name, expires_at=expires_at)
        for name, expires_at in (("a", 0), ("b", 7), ("c", 2**64 - 1))
    ]
    SnapshotWriter(tmp_path).snapshot(changes_of(tokens), timestamp_us=1)
    found = [row["expires_at_us"] for row in rows(tmp_path, "facts")]
    assert found == [None, 7, entities.BIGINT_MAX]


def test_downloaded_generation_is_one_copy(directory: Path) -> None:
    """A downloaded directory, a copy directory given alone and `copies` all read the same."""
    copy = directory / "snapshots" / "copy-1"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        want = rows(directory)
        assert rows(copy) == want
        assert rows(directory / "snapshots") == want
        assert rows(Path("unused"), copies=f"{copy}") == want


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"generation": "9"}, r"generation 9 .* there: 1, 2, 3"),
        ({"generation": "two"}, "'two': it must be a number from 1 on"),
        ({"section": "topics"}, "'topics' is no section: choose from sessions"),
        ({"kind": "topic"}, "no kind of entity is named 'topic'"),
        (
            {"kind": "topics", "section": "users"},
            "section users has no topics: they are in streams",
        ),
        ({"view": "state"}, "'state' is no view"),
        ({"partition_bytes": "0"}, "partition_bytes is '0'"),
        ({"generations": "1"}, "options .'generations'. are unknown"),
    ],
)
def test_wrong_options_are_named(directory: Path, options: dict[str, str], complaint: str) -> None:
    """The error for a wrong option names the option and the accepted values."""
    with pytest.raises(SnapshotError, match=complaint):
        rows(directory, **options)


def test_directories_without_snapshots_are_named(tmp_path: Path) -> None:
    """A directory without copies and copies without a manifest give different errors."""
    with pytest.raises(SnapshotError, match="holds no snapshots"):
        rows(tmp_path)
    SnapshotWriter(tmp_path)
    with pytest.raises(SnapshotError, match="no manifest of any generation"):
        rows(tmp_path)


def test_check_opens_every_layer(directory: Path) -> None:
    """The check in the driver finds a layer whose copies cannot be opened."""
    options = {"path": str(directory), "generation": "all"}
    reading.check(options)
    name = snapshot_cases.layer_paths(directory, 0)[-1].name
    for path in snapshot_cases.all_copies(directory, f"layers/{name}"):
        path.unlink()
    with pytest.raises(SnapshotError, match=name):
        reading.check(options)
