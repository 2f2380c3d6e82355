"""`viewstamp replica`: members are listed, added, promoted and removed, with the next step."""

from __future__ import annotations

from typing import Any

import pytest

from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.cli.test_tables import COLUMNS, on_terminal
from tests.viewstamp.client.fake_members import ATTEMPTS_BEFORE_READY
from viewstamp.api.cluster.v1 import cluster_service_pb2 as pb
from viewstamp.cli import standby_progress
from viewstamp.cli.standby_progress import told

NEW = "b.example.com:7410"
AWAY = "away.example.com:7410"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask again soon."""
    monkeypatch.setattr(standby_progress, "INTERVAL_S", 0.01)


def listed(viewstamp: CommandLine) -> dict[int, Any]:
    """Return the replicas of a list by id."""
    return {each["replica_id"]: each for each in viewstamp("replica", "list", "--json").data}


def epoch(viewstamp: CommandLine) -> int:
    """Return how often the members changed."""
    found: int = viewstamp("status", "--json").data["epoch"]
    return found


def test_a_replica_is_added_promoted_and_removed(viewstamp: CommandLine) -> None:
    """Each step is told and shown, with the epoch; who was removed is listed as removed."""
    added = viewstamp("replica", "add", NEW)
    assert added.out.startswith(f"added replica 1 at {NEW} as a standby (revision ")
    assert (listed(viewstamp)[1]["role"], listed(viewstamp)[1]["peer_address"]) == ("standby", NEW)
    promoted = viewstamp("replica", "promote", "1", "--wait")
    assert promoted.out.startswith("given replica 1 a vote (revision ")
    assert listed(viewstamp)[1]["role"] == "backup"
    assert "epoch 2" in viewstamp("status").out
    removed = viewstamp("replica", "remove", "1", "--yes")
    assert removed.out.startswith("removed replica 1; those with a vote: 0 (revision ")
    assert "never start its data directory again" in removed.err
    assert listed(viewstamp)[1]["status"] == "removed"
    (row,) = [line for line in viewstamp("status").out.splitlines() if "removed" in line]
    assert row.split()[0] == "1"


def test_after_add_the_next_step_is_told(viewstamp: CommandLine) -> None:
    """It names the flags of the new process; programs get the parts, and no sentence."""
    said = viewstamp("replica", "add", NEW)
    flags = f"--replica-id 1 --peer-listen {NEW} --join --peer 0=a.example.com:7410"
    assert flags in said.err
    assert "empty data directory" in said.err
    assert "viewstamp replica promote 1 --wait" in said.err
    again = viewstamp("replica", "add", NEW, "--json")
    assert (again.data["replica_id"], again.data["join"]) == (1, ["0=a.example.com:7410"])
    assert again.err == ""
    assert viewstamp("replica", "add", NEW, "-o", "name").out == "1\n"


@pytest.mark.parametrize("text", ["nowhere", "host:99999", "a:1,b:2"])
def test_what_is_no_address_is_refused_here(stranger: CommandLine, text: str) -> None:
    """A peer address is one HOST:PORT; the call ends before the cluster is asked."""
    said = stranger("replica", "add", text)
    assert said.code == 2
    assert "PEER_ADDRESS" in said.err


def test_dry_runs_change_nothing(viewstamp: CommandLine) -> None:
    """Each says what it would do, needs no confirmation, and the epoch stays."""
    would_add = viewstamp("replica", "add", NEW, "--dry-run")
    assert would_add.out.startswith("dry run: would have added replica 1")
    assert would_add.err == ""
    viewstamp("replica", "add", NEW)
    before = epoch(viewstamp)
    would_promote = viewstamp("replica", "promote", "1", "--wait", "--dry-run")
    assert would_promote.out.startswith("dry run: would have given replica 1 a vote")
    would_remove = viewstamp("replica", "remove", "1", "--dry-run")
    assert would_remove.out.startswith("dry run: would have removed replica 1; those with a vote")
    assert epoch(viewstamp) == before


def test_promote_waits_only_if_told_to(viewstamp: CommandLine) -> None:
    """Without --wait a standby that is behind is refused, and the error says how to wait."""
    viewstamp("replica", "add", NEW)
    for _ in range(ATTEMPTS_BEFORE_READY):
        said = viewstamp("replica", "promote", "1")
        assert said.code == 1
        assert "REPLICA_NOT_READY" in said.err
        assert "viewstamp replica promote ID --wait" in said.err
    assert viewstamp("replica", "promote", "1").code == 0


def test_waiting_ends(viewstamp: CommandLine) -> None:
    """A standby that never comes up to date is refused at the end of the patience."""
    viewstamp("replica", "add", AWAY)
    said = viewstamp("replica", "promote", "1", "--wait", "--patience-s", "0.1", "--json")
    assert (said.code, said.error["reason"]) == (1, "REPLICA_NOT_READY")


def test_waiting_does_not_hide_other_refusals(viewstamp: CommandLine) -> None:
    """An id that no replica has is told at once, however long the patience."""
    said = viewstamp("replica", "promote", "7", "--wait")
    assert (said.code, "REPLICA_NOT_FOUND" in said.err) == (1, True)
    assert "viewstamp replica list" in said.err


def test_removal_is_confirmed(viewstamp: CommandLine) -> None:
    """Without a yes nobody is removed; programs have to say it in advance."""
    viewstamp("replica", "add", NEW)
    assert viewstamp("replica", "remove", "1", answer="n\n").code == 2
    assert viewstamp("replica", "remove", "1", "--json").error["reason"] == "NOT_CONFIRMED"
    assert listed(viewstamp)[1]["status"] == "blank"
    assert viewstamp("replica", "remove", "1", answer="y\n").code == 0


def test_the_last_voter_stays(viewstamp: CommandLine) -> None:
    """A cluster without a vote would stand still; the error names the next step."""
    said = viewstamp("replica", "remove", "0", "--yes")
    assert said.code == 1
    assert "NO_OTHER_REPLICA" in said.err
    assert "viewstamp replica add" in said.err


def test_a_list_names_ids_and_fits_a_terminal(viewstamp: CommandLine) -> None:
    """On 80 columns long addresses have lines of their own; a pipe has one table."""
    viewstamp("replica", "add", f"viewstamp-1.viewstamp-headless.{'namespace' * 2}.svc:7410")
    assert viewstamp("replica", "list", "-o", "name").out == "0\n1\n"
    header, *_ = viewstamp("replica", "list").out.splitlines()
    assert header.split()[:5] == ["replica_id", "role", "status", "address", "peer_address"]
    lines = on_terminal(viewstamp, "replica", "list")
    assert max(map(len, lines)) <= COLUMNS


def test_progress_says_how_far_a_standby_is() -> None:
    """The line has the status and the entries that are left, or that nobody heard of it."""
    standby = pb.Replica(
        replica_id=3, status=pb.REPLICA_STATUS_RECOVERING, lag=12, link="connected"
    )
    status = pb.GetStatusResponse(replicas=[standby])
    assert told(3, status) == "waiting for replica 3: recovering, 12 entries behind, connected"
    assert told(4, status) == "waiting for replica 4: the primary has not heard of it"
