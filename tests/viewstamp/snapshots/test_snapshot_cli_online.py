"""The snapshot commands against a cluster: real gRPC, real files."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.snapshots.fake_snapshots import FAULTS
from tests.viewstamp.snapshots.generations import SECRETS, SnapshotDirectory, flip


def plant(replica: SnapshotDirectory, fault: str) -> None:
    """Plant a fault in the cluster; none for an empty word."""
    (replica.path / FAULTS).write_text(fault)


def test_create_waits_for_the_decision(online: CommandLine) -> None:
    """A created snapshot is waited for beyond a read's deadline, then shown and listed."""
    said = online("snapshot", "create", "--retention", "pinned")
    assert said.code == 0, said.err
    assert said.out.startswith("completed snapshot 3")
    listed = online("snapshot", "list", "--json").data
    assert [row["generation"] for row in listed] == [3, 2, 1]
    assert [row["retention"] for row in listed] == ["pinned", "last", "last"]
    assert listed[1]["entities"] == 21


def test_create_without_waiting(online: CommandLine) -> None:
    """With --no-wait the answer is the begun generation; another one is refused meanwhile."""
    begun = online("snapshot", "create", "--no-wait", "--json")
    assert begun.data["generation"] == 3
    assert begun.data["revision"] > 0
    said = online("snapshot", "create")
    assert said.code == 1
    assert "error: SNAPSHOT_IN_PROGRESS" in said.err
    assert "Next: wait for it" in said.err


def test_failed_snapshot_exits_with_1(online: CommandLine, replica: SnapshotDirectory) -> None:
    """A failed snapshot is reported with its reason and the next step."""
    plant(replica, "fail")
    said = online("snapshot", "create")
    assert said.code == 1
    assert "SNAPSHOT_FAILED: snapshot 3 failed: planted: users did not answer." in said.err
    assert "Next: look at the coordinator's log" in said.err


def test_list_and_show(online: CommandLine) -> None:
    """Snapshots are listed newest first, and shown with the digests of their sections."""
    listed = online("snapshot", "list").out
    assert "completed" in listed
    assert "2023-11-14 22:13:20Z" in listed
    shown = online("snapshot", "show", "0")
    assert "snapshot 2" in shown.out
    data = online("snapshot", "show", "2", "--json").data
    assert [task["stage"] for task in data["tasks"]] == [
        *("sessions", "users", "streams", "consumer_groups", "catalog")
    ]
    assert data["tasks"][1]["state_digest"] in shown.out
    said = online("snapshot", "show", "7")
    assert said.code == 1
    assert "SNAPSHOT_NOT_FOUND" in said.err
    assert "Next: see `viewstamp snapshot list`." in said.err


def test_delete_asks_and_refuses(online: CommandLine) -> None:
    """Deleting asks; the last good snapshot is refused; JSON asks nothing and needs --yes."""
    assert online("snapshot", "delete", "1", answer="n\n").code == 2
    said = online("snapshot", "delete", "1", "--json")
    assert said.code == 2
    assert said.error["reason"] == "NOT_CONFIRMED"
    refused = online("snapshot", "delete", "2", "--yes")
    assert refused.code == 1
    assert "SNAPSHOT_IN_USE" in refused.err
    assert "deleted snapshot 1 (revision" in online("snapshot", "delete", "1", answer="y\n").out
    assert [row["generation"] for row in online("snapshot", "list", "--json").data] == [2]


def test_dry_runs_change_nothing(online: CommandLine) -> None:
    """What would be done is said, nothing is asked, and nothing happens."""
    before = online("snapshot", "list", "--json").data
    sentences = {
        ("create",): "began snapshot 3",
        ("delete", "1"): "deleted snapshot 1",
        ("pin", "1"): "set the retention of snapshot 1 to pinned",
        ("unpin", "1", "--retention", "daily"): "set the retention of snapshot 1 to daily",
    }
    for command, sentence in sentences.items():
        said = online("snapshot", *command, "--dry-run")
        assert said.out == f"dry run: would have {sentence}; nothing was changed\n"
        assert online("snapshot", *command, "--dry-run", "--json").data["dry_run"] is True
    assert online("snapshot", "list", "--json").data == before


def test_a_snapshot_that_changed_stays(online: CommandLine) -> None:
    """Another revision than the expected one is a refusal that says what to do."""
    revision = online("snapshot", "show", "1", "--json").data["modified_revision"]
    for command in (("delete", "1", "--yes"), ("pin", "1"), ("unpin", "1")):
        said = online("snapshot", *command, "--expected-revision", str(revision + 1))
        assert said.code == 1
        assert "REVISION_MISMATCH" in said.err
    assert online("snapshot", "pin", "1", "--expected-revision", str(revision)).code == 0


def test_prune(online: CommandLine) -> None:
    """A dry run lists the deletions and changes nothing; pinned snapshots stay; else it asks."""
    prune = ("snapshot", "prune", "--keep-last", "1")
    dry = online(*prune, "--dry-run")
    assert dry.out == "dry run: would have deleted snapshot 1; nothing was changed\n"
    assert len(online("snapshot", "list", "--json").data) == 2
    assert "pinned" in online("snapshot", "pin", "1").out
    assert online(*prune, "--dry-run", "--json").data["generations"] == []
    assert online("snapshot", "unpin", "1", "--retention", "daily").code == 0
    assert online("snapshot", "list", "--json").data[1]["retention"] == "daily"
    asked = online(*prune, answer="n\n")
    assert asked.code == 2
    assert "Delete snapshot 1?" in asked.err
    assert online(*prune, "--yes", "--json").data["generations"] == [1]
    assert online("snapshot", "prune", "--keep-last", "0").code == 2


def test_a_snapshot_is_kept_for_a_time(online: CommandLine) -> None:
    """Taking one and pinning one name a time; the list and the details show until when."""
    assert online("snapshot", "pin", "1", "--keep-for", "30d").code == 0
    pinned, latest = (online("snapshot", "show", each, "--json").data for each in "12")
    assert pinned["retention"] == "pinned"
    assert pinned["kept_until"] == "2026-01-31T00:00:00.000000+00:00"
    assert latest["kept_until"] is None
    assert online("snapshot", "create", "--keep-for", "12h", "--no-wait").code == 0
    kept = online("snapshot", "show", "3", "--json").data["kept_until"]
    assert kept == "2026-01-01T12:00:00.000000+00:00"
    refused = online("snapshot", "create", "--keep-for", "30")
    assert refused.code == 2 and "30d" not in refused.out and "is no duration" in refused.err
    assert online("snapshot", "pin", "1").code == 0
    assert online("snapshot", "show", "1", "--json").data["kept_until"] is None


def test_verify(online: CommandLine, replica: SnapshotDirectory) -> None:
    """The cluster's verdicts arrive: a repair is not a failure, an unrepaired file is."""
    assert online("snapshot", "verify", "0").code == 0
    assert online("snapshot", "verify").code == 0
    layer = users_base(online, replica)
    flip(replica.copies[0] / layer)
    said = online("snapshot", "verify", "2", "--json")
    assert said.code == 0
    assert said.data["is_intact"]
    copies = {file["file"]: file["copies"] for file in said.data["files"]}
    assert len(copies) == 8
    assert copies.pop(layer)[0].endswith("bytes of it were changed; repaired")
    assert {text for found in copies.values() for text in found} == {"intact"}
    flip(replica.copies[1] / layer)
    bad = online("snapshot", "verify", "2")
    assert bad.code == 1
    assert f"{layer}, copy 1: its digest is" in bad.out
    assert "SNAPSHOT_NOT_FOUND" in online("snapshot", "verify", "9").err


def users_base(online: CommandLine, replica: SnapshotDirectory) -> str:
    """Return the name of the layer that is the base of users."""
    data = online("snapshot", "show", "2", "--directory", str(replica.path), "--json").data
    return f"layers/{data['sections'][1]['layers'][0]['digest']}.layer"


def test_all_copies_bad_on_the_cluster(online: CommandLine, replica: SnapshotDirectory) -> None:
    """A section that cannot be read fails the verification with the section's name."""
    layer = users_base(online, replica)
    for copy in replica.copies:
        flip(copy / layer)
    said = online("snapshot", "verify", "2")
    assert said.code == 1
    assert "problem: section users: no good copy" in said.out
    assert "do NOT fit" in said.out


def test_download(online: CommandLine, replica: SnapshotDirectory, tmp_path: Path) -> None:
    """A download holds the same bytes for its owner alone, and can be read like a directory."""
    out = tmp_path / "down"
    said = online("snapshot", "download", "0", "--output", str(out))
    assert said.code == 0, said.err
    assert "downloaded generation 2" in said.out
    found = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert len(found) == 8
    assert found.items() <= replica.files().items()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [out, *out.rglob("*")]}
    assert modes == {0o700, 0o600}
    shown = online("snapshot", "list", "--directory", str(out), "--json").data
    assert [row["generation"] for row in shown] == [2]


def test_broken_download_goes_on(
    online: CommandLine, replica: SnapshotDirectory, tmp_path: Path
) -> None:
    """An interrupted download is reported, and the next one keeps the whole files."""
    download = ("snapshot", "download", "2", "--output", str(tmp_path / "down"))
    plant(replica, "break")
    said = online(*download)
    assert said.code == 1
    assert "BAD_DOWNLOAD: the answers broke off" in said.err
    assert "Next: download again" in said.err
    assert not list((tmp_path / "down" / "manifests").iterdir())
    plant(replica, "")
    kept = {path: path.stat().st_ino for path in (tmp_path / "down" / "layers").iterdir()}
    assert len(kept) == 3
    again = online(*download, "--json")
    assert again.data["files"] == 8
    assert again.data["files_kept"] == 3
    assert {path: path.stat().st_ino for path in kept} == kept


def test_inspect_and_export(
    online: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a directory the snapshot is downloaded only for the time of the command."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    said = online("snapshot", "inspect", "2", "--section", "users", "--kind", "user", "--json")
    names = [json.loads(line)["username"] for line in said.out.splitlines()]
    assert names == ["root", "anna"]
    exported = online("snapshot", "export", "2", "--output", str(tmp_path / "out"), "--json")
    assert exported.data["rows"]["section=streams/kind=topics"] == 8
    assert (tmp_path / "out" / "_SUCCESS").exists()
    assert not list(temporary.iterdir())
    assert online("snapshot", "inspect", "9", "--section", "users").code == 1
    assert not list(temporary.iterdir())
    for secret in SECRETS:
        assert secret.decode() not in said.out


def test_strangers_may_not(online: CommandLine) -> None:
    """A token that the cluster refuses leads to a login."""
    tokens = online.home / "viewstamp" / "tokens.json"
    tokens.write_text(tokens.read_text().replace("access-0", "access-9"))
    said = online("snapshot", "verify", "2")
    assert said.code == 1
    assert "UNAUTHENTICATED" in said.err
    assert "viewstamp login" in said.err
