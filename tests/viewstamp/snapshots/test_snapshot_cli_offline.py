"""The snapshot commands on directories, where no cluster answers."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from coordinator.snapshot.store import rebuild
from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.snapshots.generations import SECRETS, SnapshotDirectory, flip
from viewstamp.api.snapshots.v1 import snapshots_service_pb2 as pb
from viewstamp.cli.snapshot_options import telling
from viewstamp.snapshots.catalog_view import CATALOG_VIEW_FILE, CatalogView

SNAPSHOT_COMMANDS = (
    *("create", "list", "show", "verify", "export", "delete", "prune"),
    *("inspect", "pin", "unpin", "download", "diff", "shell", "bisect"),
)


VIEW = CatalogView(
    op=70,
    revision=50,
    written_at=1_700_000_000_000_000,
    snapshots=(
        pb.Snapshot(
            generation=4,
            state=pb.SNAPSHOT_STATE_FAILED,
            failure="disk",
            retention=pb.RETENTION_CLASS_LAST,
        ),
        pb.Snapshot(
            generation=3, state=pb.SNAPSHOT_STATE_COMPLETED, retention=pb.RETENTION_CLASS_PINNED
        ),
    ),
    copies={3: ("/copy-0",)},
)


def test_list(offline: CommandLine, replica: SnapshotDirectory, tmp_path: Path) -> None:
    """Generations are listed newest first, from a data directory, copies, or one copy directory."""
    data = ("--directory", str(replica.path))
    rows = offline("snapshot", "list", *data, "--json").data
    assert [(row["generation"], row["layers"], row["entities"]) for row in rows] == [
        (2, 7, 21),
        (1, 4, 21),
    ]
    assert "2023-11-14 22:13:20Z" in offline("snapshot", "list", *data).out
    copies = [option for copy in replica.copies for option in ("--copies", str(copy))]
    assert offline("snapshot", "list", *copies, "--json").data == rows
    single = offline("snapshot", "list", "--directory", str(replica.copies[1]), "--json")
    assert single.data == rows
    (tmp_path / "empty").mkdir()
    assert "no snapshots in" in offline("snapshot", "list", "--copies", f"{tmp_path}/empty").out


def test_readers_of_an_output_may_leave() -> None:
    """A closed pipe, as behind `| head`, is not told as a file that cannot be used."""
    unused: Any = None
    with pytest.raises(BrokenPipeError), telling(unused):
        raise BrokenPipeError


def test_list_goes_on_behind_damage(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """A generation without a good manifest is warned of, the others are listed."""
    for copy in replica.copies:
        flip(max((copy / "manifests").iterdir()))
    said = offline("snapshot", "list", "--directory", str(replica.path), "--json")
    assert [row["generation"] for row in said.data] == [1]
    assert json.loads(said.err)["warning"]["reason"] == "ALL_COPIES_BAD"


def test_show(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """A generation is shown with digests, kinds, and every layer of every chain."""
    show = ("snapshot", "show", "2", "--directory", str(replica.path))
    data = offline(*show, "--json").data
    streams = data["sections"][2]
    assert streams["section"] == "streams"
    assert [layer["base_generation"] for layer in streams["layers"]] == [0, 1]
    assert {"kind": "topics", "entities": 8} in streams["kinds"]
    text = offline(*show).out
    assert data["root"] in text
    assert streams["state_digest"] in text
    assert "personal_access_tokens" in text


async def test_catalog_view(offline: CommandLine, tmp_path: Path) -> None:
    """The view of a stopped replica is listed with its age, failed generations included."""
    await rebuild(tmp_path / CATALOG_VIEW_FILE, VIEW)
    data = ("--data", str(tmp_path))
    rows = offline("snapshot", "list", *data, "--json").data
    assert [(row["generation"], row["state"]) for row in rows] == [(4, "failed"), (3, "completed")]
    assert rows[0]["failure"] == "disk"
    listed = offline("snapshot", "list", *data)
    assert "as of op 70, revision 50, written 2023-11-14 22:13:20Z" in listed.err
    assert "completed" in listed.out
    shown = offline("snapshot", "show", "0", *data)
    assert "verified copy in /copy-0" in shown.out
    assert offline("snapshot", "show", "4", *data, "--json").data["failure"] == "disk"
    missing = offline("snapshot", "show", "9", *data, "--json")
    assert (missing.code, missing.error["reason"]) == (2, "NO_SUCH_GENERATION")
    for other in (("--directory", str(tmp_path)), ("--copies", str(tmp_path)), ("--here",)):
        assert offline("snapshot", "list", *data, *other).code == 2


def test_no_catalog_view(offline: CommandLine, tmp_path: Path) -> None:
    """A missing or damaged view is reported, with what to do."""
    listed = ("snapshot", "list", "--data", str(tmp_path), "--json")
    missing = offline(*listed)
    assert (missing.code, missing.error["reason"]) == (2, "NO_CATALOG_VIEW")
    (tmp_path / CATALOG_VIEW_FILE).write_bytes(b"no database" * 1000)
    damaged = offline(*listed)
    assert (damaged.code, damaged.error["reason"]) == (1, "BAD_CATALOG_VIEW")
    assert "start the replica" in str(damaged.error)


def test_verify(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """Good copies exit with 0, one bad copy with 1 and its path, and nothing is repaired."""
    verify = ("snapshot", "verify", "0", "--directory", str(replica.path))
    good = offline(*verify)
    assert good.code == 0
    assert good.out == (
        "8 files looked at; digests and root recomputed from the layers are those of the manifest\n"
    )
    path = max((replica.copies[2] / "manifests").iterdir())
    flip(path)
    damaged = path.read_bytes()
    said = offline(*verify)
    assert said.code == 1
    assert f"problem: {path}: manifest checksum" in said.out
    assert path.read_bytes() == damaged
    data = offline(*verify, "--json").data
    assert data["is_intact"]
    assert len(data["problems"]) == 1
    assert data["files"][0]["copies"][:2] == ["intact", "intact"]


@pytest.mark.parametrize(
    "command", [("show",), ("verify",), ("inspect", "--section", "users")], ids=lambda one: one[0]
)
def test_without_a_generation(
    offline: CommandLine, replica: SnapshotDirectory, command: tuple[str, ...]
) -> None:
    """Without a generation the newest is read, and an older one only where it is named."""
    name, *options = command
    place = (*options, "--directory", str(replica.path), "--json")
    newest = offline("snapshot", name, "2", *place)
    assert newest.code == 0
    assert offline("snapshot", name, *place).out == newest.out
    assert offline("snapshot", name, "1", *place).out != newest.out


def test_inspect(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """Entities are shown as tables by kind or as JSON lines; a limit is mentioned."""
    inspect = ("snapshot", "inspect", "2", "--directory", str(replica.path))
    table = offline(*inspect, "--section", "users").out
    assert "anna" in table
    assert "personal_access_tokens" in table
    lines = offline(*inspect, "--section", "streams", "--kind", "topic", "--key", "2", "--json")
    assert [json.loads(line)["name"] for line in lines.out.splitlines()] == [
        *("topic-1", "topic-3", "topic-5", "topic-7")
    ]
    limited = offline(*inspect, "--section", "streams", "--limit", "3", "--json")
    assert len(limited.out.splitlines()) == 3
    assert "these are the first 3: raise --limit for more" in limited.err
    assert len(offline(*inspect, "--section", "streams", "--limit", "0", "--json").err) == 0
    assert "no such entities" in offline(*inspect, "--section", "users", "--kind", "user",
                                         "--key", "9").out  # fmt: skip


def test_no_secret_is_shown(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """No value of a field marked debug_redact is shown, nor its name."""
    for section in ("sessions", "users"):
        for form in ((), ("--json",)):
            inspect = ("snapshot", "inspect", "2", "--section", section, *form)
            said = offline(*inspect, "--directory", str(replica.path))
            assert said.code == 0
            for secret in SECRETS:
                assert secret.decode() not in said.out
                assert secret.hex() not in said.out
            for name in ("password_hash", "password hash", "token_hash", "results"):
                assert name not in said.out


def test_bad_copies_are_told(
    offline: CommandLine, replica: SnapshotDirectory, tmp_path: Path
) -> None:
    """Reading from the copies that are good works, and names the bad ones on stderr."""
    for path in (replica.copies[0] / "layers").iterdir():
        flip(path)
    data = ("--directory", str(replica.path))
    inspected = offline("snapshot", "inspect", "2", "--section", "users", *data, "--json")
    assert inspected.code == 0
    assert [json.loads(line)["warning"]["reason"] for line in inspected.err.splitlines()] == [
        *["BAD_COPY"] * 2
    ]
    exported = offline("snapshot", "export", "2", "--output", f"{tmp_path}/out", *data)
    assert exported.code == 0
    assert exported.err.count("warning: BAD_COPY: ") == 7


def test_export(offline: CommandLine, replica: SnapshotDirectory, tmp_path: Path) -> None:
    """An export names its tables and rows; a directory with something in it needs --overwrite."""
    out = tmp_path / "out"
    export = ("snapshot", "export", "1", "--directory", str(replica.path), "--output", str(out))
    said = offline(*export)
    assert said.code == 0
    assert "section=streams/kind=topics" in said.out
    assert f"exported generation 1 to {out}" in said.out
    refused = offline(*export)
    assert refused.code == 2
    assert "error: CANNOT_EXPORT: " in refused.err
    assert "add --overwrite to replace an export" in refused.err
    data = offline(*export, "--overwrite", "--json").data
    assert data["rows"]["section=streams/kind=streams"] == 2


def test_export_without_the_extra(
    offline: CommandLine,
    replica: SnapshotDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without pyarrow the error is one line that names the extra."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    data = ("--directory", str(replica.path), "--output", f"{tmp_path}/out")
    said = offline("snapshot", "export", "1", *data)
    assert said.code == 2
    assert len(said.err.splitlines()) == 1
    assert "ANALYTICS_MISSING: exports need pyarrow" in said.err
    assert "Next: install the extra `analytics`: pip install 'viewstamp[analytics]'." in said.err


@pytest.mark.parametrize(
    ("arguments", "reason", "code"),
    [
        (("show", "7", "--directory", "DATA"), "NO_SUCH_GENERATION", 2),
        (("verify", "7", "--directory", "DATA"), "NO_SUCH_GENERATION", 2),
        (("list", "--directory", "NOWHERE"), "NO_SUCH_DIRECTORY", 2),
        (("verify", "1", "--copies", "NOWHERE"), "NO_SUCH_DIRECTORY", 2),
        (("inspect", "1", "--section", "user", "--directory", "DATA"), "NO_SUCH_ENTITY", 2),
        (("verify", "1"), "CANNOT_CONNECT", 3),
        (("export", "1", "--output", "NOWHERE"), "CANNOT_CONNECT", 3),
        (("download", "1", "--output", "DATA/snapshots/copy-0/manifests/x/y"), "CANNOT_CONNECT", 3),
    ],
)
def test_errors_name_the_next_step(
    offline: CommandLine,
    replica: SnapshotDirectory,
    tmp_path: Path,
    arguments: tuple[str, ...],
    reason: str,
    code: int,
) -> None:
    """An impossible command gives an error of one line, with what to do."""
    named = {"DATA": str(replica.path), "NOWHERE": f"{tmp_path}/nowhere"}
    words = [named.get(word, word.replace("DATA/", f"{replica.path}/")) for word in arguments]
    said = offline("snapshot", *words)
    assert said.code == code
    assert said.err.startswith(f"error: {reason}: ")
    assert len(said.err.splitlines()) == 1
    assert "Next: " in said.err


def test_bad_data_exits_with_1(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """Files without a good copy are no wrong usage: exit code 1, and the ways out."""
    for copy in replica.copies:
        shutil.rmtree(copy / "layers")
    data = ("--directory", str(replica.path), "--json")
    said = offline("snapshot", "inspect", "2", "--section", "users", *data)
    assert said.code == 1
    assert said.error["reason"] == "ALL_COPIES_BAD"
    assert "another generation" in said.error["next_step"]


def test_both_sources_are_refused(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """--directory and --copies exclude each other."""
    both = ("--directory", str(replica.path), "--copies", str(replica.copies[0]))
    said = offline("snapshot", "list", *both)
    assert said.code == 2
    assert "not both" in said.err


def test_help_suffices(offline: CommandLine) -> None:
    """Every command has a help text that says what it does."""
    overview = offline("snapshot", "--help").out
    for name in SNAPSHOT_COMMANDS:
        assert name in overview
        assert len(offline("snapshot", name, "--help").out.splitlines()) > 5
