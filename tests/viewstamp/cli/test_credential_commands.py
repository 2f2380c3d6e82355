"""Logout, sessions, tokens, levels and the audit log, by the command line at a real replica."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.processes.callers import Caller
from tests.processes.processes import ReplicaProcesses, eventually, replica, unique
from tests.viewstamp.cli.conftest import CommandLine, Said
from viewstamp.limits import FEATURE_LEVEL_MAX

pytestmark = pytest.mark.xdist_group("cli-credentials")

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def running() -> Iterator[ReplicaProcesses]:
    """A replica that these tests share: they use names of their own."""
    with replica() as made:
        yield made


@pytest.fixture
def root(running: ReplicaProcesses, tmp_path: Path) -> CommandLine:
    """The command line of root."""
    home = tmp_path / "root"
    home.mkdir()
    return logged_in(CommandLine(running.address, home), "root", running.root_password())


@pytest.fixture
def alice(running: ReplicaProcesses, root: CommandLine, tmp_path: Path) -> CommandLine:
    """The command line of a user without permissions, under a new name."""
    home = tmp_path / unique("alice")
    home.mkdir()
    line = CommandLine(running.address, home)
    line.password_file.write_text(PASSWORD)
    created = root("user", "create", home.name, "--password-file", str(line.password_file))
    assert created.code == 0, created.err
    return logged_in(line, home.name, PASSWORD)


def logged_in(line: CommandLine, username: str, password: str) -> CommandLine:
    """Log in."""
    line.password_file.write_text(password)
    flags = ("--username", username, "--password-file", str(line.password_file))
    assert line("login", *flags).code == 0
    return line


def store(line: CommandLine) -> Path:
    """Return where logins are kept."""
    return line.home / "viewstamp" / "tokens.json"


def sessions_of(running: ReplicaProcesses, username: str, count: int) -> list[int]:
    """Open sessions of a user, as programs do; return their ids."""
    with running.channel() as channel:
        caller = Caller(channel).logged_in(username, PASSWORD)
        return [caller.with_session().session for _ in range(count)]


def listed(said: Said) -> list[int]:
    """Return the sessions that a command has listed."""
    return [session["session_id"] for session in said.data]


def refused(said: Said, reason: str, next_step: str, *, code: int = 1) -> None:
    """Demand one line with the reason, a sentence, and the next step."""
    assert said.code == code, (said.out, said.err)
    (line,) = said.err.splitlines()
    sentence, _, step = line.partition(" Next: ")
    assert sentence.startswith(f"error: {reason}: ") and sentence.endswith("."), line
    assert next_step in step and step.endswith("."), line


def test_logout_ends_the_login(alice: CommandLine) -> None:
    """A logout ends every copy of the access token, and removes the one kept here."""
    kept = store(alice).read_text()
    said = alice("logout")
    assert said.out == f"ended and forgot the login at {alice.address}\n"
    refused(alice("user", "whoami"), "NOT_LOGGED_IN", "run `viewstamp login", code=2)
    store(alice).write_text(kept)
    refused(alice("user", "whoami"), "UNAUTHENTICATED", "run `viewstamp login --address")
    again = alice("logout", "--json").data
    assert (again["was_logged_in"], again["ended"]) == (True, False)
    assert alice("logout").out == f"no login is kept at {alice.address}\n"


def test_logout_here_alone(alice: CommandLine) -> None:
    """With --local the login is forgotten, and a copy of the access token stays valid."""
    kept = store(alice).read_text()
    assert alice("logout", "--local").out == f"forgot the login at {alice.address}\n"
    assert alice("user", "whoami").code == 2
    store(alice).write_text(kept)
    assert alice("user", "whoami", "--json").data["username"] == alice.home.name


def test_logout_from_nobody(alice: CommandLine) -> None:
    """If no cluster answers the login is still forgotten, and the error says what remains."""
    kept = store(alice).read_text()
    store(alice).write_text(kept.replace(alice.address, "127.0.0.1:1"))
    said = alice("logout", "--address", "127.0.0.1:1", "--timeout", "1")
    refused(said, "CANNOT_CONNECT", "viewstamp up", code=3)
    assert json.loads(store(alice).read_text()) == {"logins": {}, "addresses": {}}


def test_sessions_are_listed(
    running: ReplicaProcesses, root: CommandLine, alice: CommandLine
) -> None:
    """Users list their own sessions; those who read users also list another user's, or all."""
    assert alice("session", "list").out == "no sessions\n"
    name = alice.home.name
    ids = sessions_of(running, name, 2)
    assert listed(alice("session", "list", "--json")) == ids
    rows = alice("session", "list").out.splitlines()
    assert {number for row in rows for number in row.split() if number in map(str, ids)} == {
        str(session_id) for session_id in ids
    }
    assert listed(root("session", "list", "--user", name, "--json")) == ids
    assert set(ids) <= set(listed(root("session", "list", "--all", "--json")))
    for flags in (("--all",), ("--user", "root")):
        refused(alice("session", "list", *flags), "PERMISSION_DENIED", "viewstamp user permissions")
    refused(root("session", "list", "--user", "nobody"), "USER_NOT_FOUND", "viewstamp user list")


def test_sessions_are_ended(
    running: ReplicaProcesses, root: CommandLine, alice: CommandLine
) -> None:
    """One session or all, one's own or a user's, end after a question; a dry run ends none."""
    name = alice.home.name
    first, second, third = sessions_of(running, name, 3)
    denied = alice("session", "end", str(first), answer="n\n")
    assert denied.code == 2 and "nothing was changed" in denied.err
    assert alice("session", "end", "--json").error["reason"] == "NOT_CONFIRMED"
    dry = root("session", "end", str(first), "--user", name, "--dry-run")
    assert dry.out.startswith(f"dry run: would have ended session {first} of user {name}")
    assert listed(alice("session", "list", "--json")) == [first, second, third]
    said = alice("session", "end", str(first), answer="y\n")
    assert f"ended session {first} (revision " in said.out
    assert listed(alice("session", "list", "--json")) == [second, third]
    assert root("session", "end", "--user", name, "--json", "--yes").data["dry_run"] is False
    assert listed(alice("session", "list", "--json")) == []
    said = alice("session", "end", "--user", "root", "--yes")
    refused(said, "PERMISSION_DENIED", "ask an administrator for it")


def test_tokens_of_others_are_revoked(root: CommandLine, alice: CommandLine) -> None:
    """User managers revoke another's token after a question; it is invalid from then on."""
    name = alice.home.name
    secret = alice.home / "laptop"
    secret.write_text(alice("token", "create", "laptop").out.splitlines()[-1])
    by_token = ("login", "--personal-access-token-file", str(secret))
    revoke = ("token", "revoke", name, "laptop")
    assert root(*revoke, answer="n\n").code == 2
    dry = root(*revoke, "--dry-run").out
    assert dry.startswith(f"dry run: would have deleted token 'laptop' of user {name}")
    refused(alice("token", "revoke", "root", "any", "--yes"), "PERMISSION_DENIED", "administrator")
    assert alice(*by_token).code == 0
    assert alice("user", "whoami").code == 0
    said = root(*revoke, answer="y\n")
    assert f"deleted token 'laptop' of user {name} (revision " in said.out
    refused(alice("user", "whoami"), "UNAUTHENTICATED", "viewstamp login")
    refused(alice(*by_token), "INVALID_CREDENTIALS", "check")
    refused(root(*revoke, "--yes"), "TOKEN_NOT_FOUND", "`viewstamp token list --user USER`")


def test_the_feature_level_is_shown(root: CommandLine, alice: CommandLine) -> None:
    """The level in force and each replica's level are shown; an unknown level is refused."""
    shown = root("cluster", "feature-level").out.splitlines()
    assert shown == [
        f"feature level {FEATURE_LEVEL_MAX} is in force",
        f"replica 0 supports up to {FEATURE_LEVEL_MAX}",
    ]
    document = root("cluster", "feature-level", "--json").data
    assert document == {"feature_level": FEATURE_LEVEL_MAX, "supported": {"0": FEATURE_LEVEL_MAX}}
    refused(root("cluster", "feature-level", "--dry-run"), "USAGE", "give both", code=2)
    for flags in (("--raise", "--yes"), ("--raise", "--dry-run")):
        said = root("cluster", "feature-level", *flags)
        refused(said, "FEATURE_LEVEL_UNSUPPORTED", "upgrade or start")
        assert f"replica 0 up to {FEATURE_LEVEL_MAX}" in said.err
    said = alice("cluster", "feature-level", "--raise", "--yes")
    refused(said, "PERMISSION_DENIED", "ask an administrator for it")


class AuditLog:
    """Return the output of `viewstamp audit` for a replica."""

    def __init__(self, line: CommandLine, directory: Path) -> None:
        self._line = line
        self._flags = ("audit", "--data-directory", str(directory))

    def records(self, *flags: str) -> list[dict[str, Any]]:
        """Return the records that pass the filters."""
        said = self._line(*self._flags, *flags, "--json")
        assert said.code == 0, said.err
        return [json.loads(line) for line in said.out.splitlines()]

    def lines(self, *flags: str) -> list[str]:
        """Return the lines for people."""
        return self._line(*self._flags, *flags).out.splitlines()

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait for a record."""

        def look() -> dict[str, Any] | None:
            return next((record for record in self.records() if wanted(record)), None)

        return eventually(look)


def test_the_audit_log_is_filtered(
    running: ReplicaProcesses, root: CommandLine, alice: CommandLine
) -> None:
    """Filters by user, method, revision, time and outcome combine."""
    log = AuditLog(root, running.data)
    stream = unique("stream")
    assert root("stream", "create", stream).code == 0
    assert alice("stream", "create", stream).code == 1
    assert alice("logout").code == 0
    alice_id = root("user", "get", alice.home.name, "--json").data["id"]

    def is_of(user_id: int, method: str) -> Callable[[dict[str, Any]], bool]:
        return lambda record: (
            record.get("user") == user_id
            and any(
                part["method"] == method and part.get("request") in ({"name": stream}, {}, None)
                for part in record.get("methods", ())
            )
        )

    created = log.until(is_of(0, "CreateStream"))
    denied = log.until(is_of(alice_id, "CreateStream"))
    log.until(is_of(alice_id, "Logout"))
    of_alice = log.records("--user", str(alice_id))
    assert {record["user"] for record in of_alice} == {alice_id}
    assert log.records("--user", str(alice_id), "--denied") == [denied]
    assert denied["methods"][0]["refused"] == {"PERMISSION_DENIED": 1}, denied
    logouts = log.records("--user", str(alice_id), "--method", "Logout")
    assert [record["outcome"] for record in logouts] == ["ok"]
    since = ("--since-revision", str(created["revision"]))
    assert created in log.records(*since, "--method", "CreateStream")
    later = ("--since-revision", str(created["revision"] + 1))
    assert created not in log.records(*later)
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert log.records("--since", tomorrow.strftime("%Y-%m-%dT%H:%M:%S")) == []
    (line,) = log.lines("--user", str(alice_id), "--denied")
    assert f"user {alice_id}" in line and "CreateStream" in line
    assert "refused PERMISSION_DENIED" in line


def test_a_directory_without_an_audit_log(root: CommandLine, tmp_path: Path) -> None:
    """A directory without an audit log is named, with the flag to use."""
    said = root("audit", "--data-directory", str(tmp_path))
    refused(said, "NO_AUDIT_LOG", "give --data-directory", code=2)
    assert str(tmp_path) in said.err
