"""`viewstamp archive`, and `viewstamp restore` of one: what they tell, and their exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.past.test_restored_cluster import restored, state_of_history
from tests.viewstamp.archive.shipped import ShippedReplica
from tests.viewstamp.cli.conftest import CommandLine

USAGE: Final = 2
REFUSED: Final = 1
CHANGES: Final = 5


@pytest.fixture
def command(tmp_path: Path) -> CommandLine:
    """The command line without any cluster."""
    return CommandLine("127.0.0.1:1", tmp_path)


@pytest.fixture
def replica(tmp_path: Path) -> ShippedReplica:
    """A replica that has written ten entries, nine of which are known to be committed."""
    found = ShippedReplica(tmp_path / "data")
    found.append(10)
    return found


def test_what_is_shipped_is_listed_and_verified(
    command: CommandLine, replica: ShippedReplica, tmp_path: Path
) -> None:
    """Shipping, listing and verifying agree on how far the archive reaches."""
    place = str(tmp_path / "archive")
    shipped = command("archive", "ship", "--data", str(replica.data), "--to", place, "--json").data
    assert (shipped["archived_op"], shipped["lag_ops"], shipped["shipped_pieces"]) == (9, 0, 1)
    listed = command("archive", "list", f"archive:{place}", "--json").data
    assert (listed["first_op"], listed["last_op"], listed["gaps"]) == (1, 9, [])
    verified = command("archive", "verify", place)
    assert verified.code == 0
    assert "archive whole: manifest 1, 1 pieces, 0 snapshots" in verified.out
    assert "last op        9\n" in command("archive", "list", place).out


def test_what_is_missing_is_told(
    command: CommandLine, replica: ShippedReplica, tmp_path: Path
) -> None:
    """A piece that is gone is named, with what can still be restored; the exit code is 5."""
    place = tmp_path / "archive"
    ship = ("archive", "ship", "--data", str(replica.data), "--to", str(place))
    command(*ship)
    replica.append(5)
    command(*ship)
    lost = max((place / "log").iterdir())
    lost.unlink()
    said = command("archive", "verify", str(place))
    assert said.code == CHANGES
    assert f"ARCHIVE_LACKS_OBJECT: {place} has no log/{lost.name}" in said.out
    data = command("archive", "verify", str(place), "--json").data
    assert [each["last_revision"] for each in data["restorable"]] == [9]
    assert data["problems"][0]["name"] == f"log/{lost.name}"
    into = tmp_path / "new"
    refused = command("restore", str(place), "--into", str(into), "--json")
    assert (refused.code, refused.error["reason"]) == (REFUSED, "ARCHIVE_LACKS_OBJECT")
    assert lost.name in refused.error["message"] and not into.exists()


@pytest.mark.long
def test_an_encrypted_archive_is_restored(command: CommandLine, tmp_path: Path) -> None:
    """With the key the archive of a replica becomes a cluster; what was fetched is removed then."""
    data, place, key = (str(tmp_path / name) for name in ("lost", "archive", "key"))
    restored(state_of_history(6), Path(data), 1)
    assert command("keygen", key).code == 0
    encrypted = ("--archive-key-file", key)
    assert command("archive", "ship", "--data", data, "--to", place, *encrypted).code == 0
    assert command("archive", "verify", place).code == USAGE
    assert command("archive", "verify", place, *encrypted).code == 0
    restore = ("restore", place, "--into", str(tmp_path / "new"), *encrypted)
    assert command(*restore).code == 0
    assert (tmp_path / "new" / "superblock").exists()
    assert not (tmp_path / "new.fetched").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("archive", "list", "{path}/none"), "NO_ARCHIVE"),
        (("archive", "list", "gs://bucket"), "STORE_UNFIT"),
        (("archive", "ship", "--data", "{path}", "--to", "{path}/x"), "no journal"),
        (("archive", "ship", "--to", "{path}/x", "--grace", "1s"), "is shorter than 60 s"),
        (("archive", "verify", "{path}/none", "--archive-key-file", "{path}/no"), "CANNOT_USE"),
        (("restore", "{path}", "--into", "{path}/new", "--manifest", "3"), "is no archive"),
        (("restore", "archive:{path}/x", "--into", "new", "--copies", "{path}"), "--copies and"),
    ],
)
def test_what_is_wrong_is_said(
    command: CommandLine, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    """A wrong place, key or option is told with what would be right."""
    said = command(*(each.format(path=tmp_path) for each in arguments))
    assert said.code in (REFUSED, USAGE) or "superblock" in said.out
    assert says in " ".join((said.out + said.err).split()) or "superblock" in said.out
