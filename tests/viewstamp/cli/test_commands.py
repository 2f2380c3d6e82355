"""The command line against a gateway: tables, JSON, errors, exit codes."""

from __future__ import annotations

import json
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.viewstamp.cli.conftest import CommandLine, gateway


def test_login_keeps_the_token_private(stranger: CommandLine) -> None:
    """A login is kept in a file that only its owner may read; logout forgets it."""
    said = stranger.log_in()
    assert said.code == 0
    assert f"logged in at {stranger.address} as root until 20" in said.out
    file = stranger.home / "viewstamp" / "tokens.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (kept,) = json.loads(file.read_text())["logins"].values()
    assert kept["access_token"] == "access-0"
    assert stranger("user", "whoami").code == 0
    ended = stranger("logout", "--json").data
    assert (ended["was_logged_in"], ended["ended"]) == (True, True)
    assert stranger("user", "whoami").code == 2


def test_a_login_holds_however_the_cluster_is_spelled(stranger: CommandLine) -> None:
    """Logged in by one spelling, all spellings of its addresses are; any other one is not."""
    port = stranger.address.rpartition(":")[2]
    assert stranger.log_in().code == 0
    for spelling in (f"localhost:{port}", f"127.0.0.1:{port},127.0.0.1:1", f"LOCALHOST:{port}"):
        assert stranger("user", "whoami", "--address", spelling).code == 0
    with gateway() as elsewhere:
        assert "NOT_LOGGED_IN" in stranger("user", "whoami", "--address", elsewhere).err
    assert stranger("logout", "--address", f"localhost:{port}", "--local").code == 0
    assert "NOT_LOGGED_IN" in stranger("user", "whoami").err


def test_login_asks_for_the_password(stranger: CommandLine) -> None:
    """Without a file the command asks for the password, and refuses a wrong one in one line."""
    assert stranger("login", answer="correct horse\n").code == 0
    said = stranger("login", answer="wrong\n")
    assert said.code == 1
    error = said.err.splitlines()[-1]
    assert "error: INVALID_CREDENTIALS: wrong user or wrong password" in error
    assert "Next: check username and password" in error


def test_not_logged_in_names_the_next_step(stranger: CommandLine) -> None:
    """Without a login, a command says how to log in."""
    said = stranger("stream", "list")
    assert said.code == 2
    assert f"Next: run `viewstamp login --address {stranger.address}`." in said.err


def test_refused_token_names_the_next_step(viewstamp: CommandLine) -> None:
    """A token that the cluster refuses leads to a login."""
    file = viewstamp.home / "viewstamp" / "tokens.json"
    file.write_text(file.read_text().replace("access-0", "access-9"))
    said = viewstamp("stream", "list")
    assert said.code == 1
    assert "UNAUTHENTICATED" in said.err
    assert "viewstamp login" in said.err


def test_damaged_store_is_told(viewstamp: CommandLine) -> None:
    """A token file that cannot be read is named."""
    (viewstamp.home / "viewstamp" / "tokens.json").write_text("[]")
    said = viewstamp("stream", "list")
    assert said.code == 2
    assert "tokens.json is damaged" in said.err


@pytest.mark.parametrize("address", ["127.0.0.1", ":7400", "localhost:", "a:1,b", "h:65536", ","])
def test_an_address_has_host_and_port(stranger: CommandLine, address: str) -> None:
    """A wrong address is repeated as given, with an example of a right one."""
    said = stranger("stream", "list", "--address", address)
    assert said.code == 2
    assert "give HOST:PORT, for example localhost:7400" in " ".join(said.err.split())


def test_streams_from_creation_to_deletion(viewstamp: CommandLine) -> None:
    """A stream is created, listed, shown, refused twice, and deleted after a confirmation."""
    assert "no streams yet" in viewstamp("stream", "list").out
    created = viewstamp("stream", "create", "orders")
    assert "created stream 'orders' with id 1 (revision" in created.out
    again = viewstamp("stream", "create", "orders")
    assert again.code == 1
    assert again.err.startswith("error: STREAM_EXISTS: a stream named 'orders' exists")
    assert again.err.endswith(": choose another name.\n")
    assert "orders" in viewstamp("stream", "list").out
    assert "name" in viewstamp("stream", "get", "1").out
    refused = viewstamp("stream", "delete", "orders", answer="n\n")
    assert refused.code == 2
    assert "nothing was changed" in refused.err
    dry = viewstamp("stream", "delete", "orders", "--dry-run")
    assert dry.out.startswith("dry run: would have deleted stream orders")
    assert "deleted stream orders" in viewstamp("stream", "delete", "orders", answer="y\n").out
    missing = viewstamp("stream", "get", "orders")
    assert missing.code == 1
    assert "STREAM_NOT_FOUND" in missing.err


def test_json_has_stable_keys(viewstamp: CommandLine) -> None:
    """With --json, before or after the command, results and errors are JSON with fixed keys."""
    created = viewstamp("--json", "stream", "create", "orders").data
    assert created.keys() == {"stream_id", "revision", "dry_run"}
    listed = viewstamp("stream", "list", "--json").data
    assert [stream["name"] for stream in listed] == ["orders"]
    assert listed[0].keys() == {
        "id",
        "name",
        "topics_count",
        "created_at",
        "created_revision",
        "modified_revision",
        "purge_generation",
    }
    error = viewstamp("stream", "create", "orders", "--json").error
    assert error.keys() == {"reason", "message", "next_step", "details"}
    assert error["reason"] == "STREAM_EXISTS"
    assert error["details"] == {"stream": "orders"}
    unconfirmed = viewstamp("stream", "delete", "orders", "--json")
    assert unconfirmed.code == 2
    assert unconfirmed.error["reason"] == "NOT_CONFIRMED"
    assert viewstamp("stream", "delete", "orders", "--json", "--yes").data["dry_run"] is False


def test_every_page_is_listed(viewstamp: CommandLine) -> None:
    """A list is complete, however many pages it has."""
    for name in ("a", "b", "c"):
        viewstamp("stream", "create", name)
    assert len(viewstamp("stream", "list", "--json").data) == 3


def test_topic_options_are_parsed(viewstamp: CommandLine) -> None:
    """Durations and sizes are written with units and arrive as numbers."""
    viewstamp("stream", "create", "orders")
    said = viewstamp(
        *("topic", "create", "orders", "payments", "--partitions", "3"),
        *("--message-expiry", "7d", "--max-size", "10GiB", "--compression", "zstd"),
    )
    assert "created topic 'payments'" in said.out
    topic = viewstamp("topic", "get", "orders", "payments", "--json").data
    assert topic["partitions_count"] == 3
    assert topic["options"] == {
        "message_expiry_us": 604_800_000_000,
        "max_topic_size_bytes": 10 * 2**30,
        "compression_algorithm": "zstd",
        "replication_factor": None,
        "segment_size_bytes": None,
    }
    assert "payments" in viewstamp("topic", "list", "orders").out
    more = viewstamp("topic", "partitions", "add", "orders", "payments", "2", "--json")
    assert more.data["partitions_count"] == 5
    wrong = viewstamp("topic", "create", "orders", "x", "--message-expiry", "soon")
    assert wrong.code == 2


def test_groups_are_created_and_shown(viewstamp: CommandLine) -> None:
    """A group is created with its assignor and shown with its members."""
    viewstamp("stream", "create", "orders")
    viewstamp("topic", "create", "orders", "payments")
    created = viewstamp(
        "group", "create", "orders", "payments", "billing", "--assignor", "range", "--json"
    )
    assert created.data["group_id"] > 0
    assert "billing" in viewstamp("group", "list", "orders", "payments").out
    shown = viewstamp("group", "get", "orders", "payments", "billing").out
    assert "range" in shown
    assert "members_count" in shown
    removed = viewstamp("group", "delete", "orders", "payments", "billing", "--yes")
    assert removed.out.startswith("deleted group billing")


def test_groups_are_updated(viewstamp: CommandLine) -> None:
    """Assignor and timeout change alone or together, and stay as they are if they are not named."""
    group = ("orders", "payments", "billing")
    viewstamp("stream", "create", "orders")
    viewstamp("topic", "create", "orders", "payments")
    viewstamp("group", "create", *group, "--member-timeout-ms", "10000")

    def shown() -> tuple[str, int]:
        data = viewstamp("group", "get", *group, "--json").data
        return data["assignor"], data["member_timeout_ms"]

    assert shown() == ("uniform", 10_000)
    assert viewstamp("group", "update", *group, "--assignor", "range").code == 0
    assert shown() == ("range", 10_000)
    tried = viewstamp("group", "update", *group, "--member-timeout-ms", "20000", "--dry-run")
    assert (tried.code, shown()) == (0, ("range", 10_000))
    viewstamp("group", "update", *group, "--member-timeout-ms", "20000")
    assert shown() == ("range", 20_000)


def test_offsets_of_a_group_may_end(viewstamp: CommandLine) -> None:
    """A retention is set with the group, changed and taken away, and kept by other updates."""
    group = ("orders", "payments", "billing")
    option = "--offsets-retention-ms"
    viewstamp("stream", "create", "orders")
    viewstamp("topic", "create", "orders", "payments")
    viewstamp("group", "create", *group, option, "60000")

    def shown() -> int:
        return int(viewstamp("group", "get", *group, "--json").data["offsets_retention_ms"])

    assert shown() == 60_000
    viewstamp("group", "update", *group, "--assignor", "range")
    assert shown() == 60_000
    viewstamp("group", "update", *group, option, "90000")
    assert shown() == 90_000
    viewstamp("group", "update", *group, option, "0")
    assert shown() == 0
    wrong = viewstamp("group", "update", *group, option, "-1")
    assert (wrong.code, option in wrong.err) == (2, True)


def test_user_is_created_with_permissions(viewstamp: CommandLine) -> None:
    """The three permission options become one set of permissions."""
    said = viewstamp(
        *("user", "create", "ann", "--password-file", str(viewstamp.password_file)),
        *("--global", "manage_streams,read_users", "--stream", "orders:read_stream"),
        *("--topic", "orders/payments:send_messages", "--json"),
    )
    assert said.data["user_id"] == 1
    granted = viewstamp("user", "get", "ann", "--json").data["permissions"]
    assert [name for name, given in granted["global"].items() if given] == [
        "read_users",
        "manage_streams",
    ]
    stream = granted["streams"][0]
    assert stream["stream"] == {"id": None, "name": "orders"}
    assert stream["read_stream"] is True
    assert stream["topics"][0]["send_messages"] is True
    shown = viewstamp("user", "get", "ann").out
    assert "everywhere: read_users, manage_streams" in shown
    assert "stream orders: read_stream" in shown
    assert "topic orders/payments: send_messages" in shown
    assert "ann" in viewstamp("user", "list").out


def test_wrong_permissions_are_usage_errors(viewstamp: CommandLine) -> None:
    """An unknown permission is named with those that would be right; nothing is sent."""
    said = viewstamp("user", "permissions", "ann", "--global", "rule_the_world")
    assert said.code == 2
    assert "rule_the_world" in said.err
    assert "manage_servers" in said.err
    assert viewstamp("user", "permissions", "ann").code == 2
    assert viewstamp("user", "permissions", "ann", "--clear").code == 0


def test_passwords_are_changed(viewstamp: CommandLine) -> None:
    """A user's own password needs the current one, another's does not."""
    file = str(viewstamp.password_file)
    own = viewstamp("user", "password", "--password-file", file, "--current-password-file", file)
    assert "changed your password" in own.out
    other = viewstamp("user", "password", "ann", answer="new password\nnew password\n")
    assert "changed the password of user ann" in other.out


def test_raw_token_is_shown_once(viewstamp: CommandLine) -> None:
    """The new token stands alone on the last line, ready to be copied."""
    said = viewstamp("token", "create", "deploy", "--expires-in", "30d")
    assert said.out.splitlines()[-1] == "secret of deploy"
    listed = viewstamp("token", "list", "--json").data
    assert [token["name"] for token in listed] == ["deploy"]
    assert datetime.fromisoformat(listed[0]["expires_at"]) > datetime.now(UTC)
    assert viewstamp("token", "delete", "deploy", "--yes").code == 0


def test_a_description_is_set_and_shown(viewstamp: CommandLine) -> None:
    """The status shows a description once it is set, and a dry run only asks."""
    dry = viewstamp("cluster", "describe", "staging of Berlin", "--dry-run")
    assert "it could be set now" in dry.out
    assert "staging" not in viewstamp("status").out
    said = viewstamp("cluster", "describe", "staging of Berlin", "--expected-revision", "0")
    assert "set at revision 7" in said.out
    assert "staging of Berlin   (set at revision 7)" in viewstamp("status").out
    assert viewstamp("cluster", "describe", "", "--json").data == {
        "description": "",
        "description_revision": 0,
    }


def test_the_feature_level_is_raised_after_a_question(viewstamp: CommandLine) -> None:
    """Raising the level cannot be undone, so it asks or demands --yes, and a dry run changes
    nothing."""
    level = ("cluster", "feature-level")
    assert "feature level 1 is in force" in viewstamp(*level).out
    refused = viewstamp(*level, "--raise", answer="n\n")
    assert refused.code == 2
    assert "nobody can take back" in refused.err and "nothing was changed" in refused.err
    assert viewstamp(*level, "--raise", "--json").error["reason"] == "NOT_CONFIRMED"
    assert "it could be raised to 2 now" in viewstamp(*level, "--raise", "--dry-run").out
    dry = viewstamp(*level, "--raise", "--dry-run", "--json").data
    assert (dry["feature_level"], dry["could_be_raised"]) == (1, True)
    assert "feature level 2 is in force" in viewstamp(*level, "--raise", answer="y\n").out
    assert viewstamp(*level, "--raise", "--yes", "--json").data["feature_level"] == 3


def test_status_shows_services_and_digests(viewstamp: CommandLine) -> None:
    """Status is a table for people and a document for programs; digests only when asked for."""
    shown = viewstamp("status").out
    assert "cluster 00ff" in shown
    assert "normal" in shown
    assert "no alarms" in shown
    assert "ab" * 32 not in shown
    assert "ab" * 32 in viewstamp("status", "--digests").out
    document = viewstamp("status", "--json").data
    assert document["services"][0]["stage"] == "streams"
    assert document["view"] == 3


def test_keygen_never_overwrites(stranger: CommandLine, tmp_path: Path) -> None:
    """A new key is private and complete; an existing file is left alone."""
    file = tmp_path / "cluster.key"
    assert stranger("keygen", str(file)).code == 0
    key = file.read_text()
    assert len(bytes.fromhex(key)) == 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    again = stranger("keygen", str(file))
    assert again.code == 2
    assert "must never be replaced" in again.err
    assert file.read_text() == key


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("stream", "create"), "Missing argument 'name'"),
        (("stram", "list"), "No such command 'stram'"),
        (("stream", "list", "--no-such-flag"), "No such option: --no-such-flag"),
        (("topic", "create", "a", "b", "--partitions", "many"), "Invalid value for '--partitions'"),
    ],
)
def test_wrong_usage_is_json_where_json_is_asked_for(
    viewstamp: CommandLine, arguments: tuple[str, ...], says: str
) -> None:
    """A program that asks for JSON gets its errors of usage in the form of all others."""
    said = viewstamp(*arguments, "--json")
    assert said.code == 2
    assert said.error["reason"] == "USAGE"
    assert says in said.error["message"]


def test_up_tells_in_one_line_why_it_cannot_start(stranger: CommandLine, tmp_path: Path) -> None:
    """A taken port is one line on stderr and exit code 2."""
    said = stranger("up", "--data-directory", str(tmp_path / "data"), "--listen", stranger.address)
    assert said.code == 2
    assert said.err.startswith("error: CANNOT_START: 127.0.0.1:")
    assert len(said.err.splitlines()) == 1


def test_up_refuses_standbys_of_a_lone_replica(stranger: CommandLine, tmp_path: Path) -> None:
    """Standbys of a lone replica are refused, since nothing would be sent to them."""
    said = stranger("up", "--data-directory", str(tmp_path / "data"), "--standbys", "1")
    assert said.code == 2
    assert "standbys need at least 2 replicas" in said.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("debug",), "write flags behind `--`"),
        (("--", "--log-level", "debug", "info"), "'info' is no flag"),
        (("--", "--log-level=debug", "info"), "'info' is no flag"),
        (("--", "--telemetry-compress", "yes"), "'yes' is no flag"),
        (("--", "--log-level", "debug", "--", "--help"), "`--` stands once"),
        (("--", "--help"), "`python -m coordinator --help` shows"),
        (("--", "--log-level", "debug", "-h"), "-h starts no coordinator"),
        (("--", "--log-level", "debug", "--listen=127.0.0.1:0"), "write it before `--`"),
        (("--", "--cluster-key", "/key"), "--cluster-key cannot be passed on"),
        (("--replicas", "3", "--", "--replica-id", "7"), "--replica-id cannot be passed on"),
        (
            ("--replicas", "2", "--standbys", "1", "--", "--journal-archive=/old"),
            "--journal-archive would be the same for all 3 replicas",
        ),
    ],
)
def test_up_says_which_flags_it_cannot_pass_on(
    stranger: CommandLine, tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    """Flags that `up` itself sets for the coordinators are refused before anything is made."""
    said = stranger("up", "--data-directory", str(tmp_path / "data"), *arguments)
    assert said.code == 2
    assert said.err.startswith("error: CANNOT_START: ")
    assert says in said.err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("replicas", [1, 2])
def test_up_passes_flags_on(stranger: CommandLine, tmp_path: Path, replicas: int) -> None:
    """The coordinators get the flags after `--`: they refuse this one, and the error says why."""
    said = stranger(
        *("up", "--data-directory", str(tmp_path / "data"), "--listen", "127.0.0.1:0"),
        *("--replicas", str(replicas), "--", "--snapshot-keep-last", "0"),
    )
    assert said.code == 2
    assert "CANNOT_START: coordinator: --snapshot-keep-last is 0: keep at least 1" in said.err
    assert len(said.err.splitlines()) == 1


@pytest.mark.parametrize(
    "command",
    [
        (),
        ("up",),
        ("keygen",),
        ("login",),
        ("logout",),
        ("status",),
        *((group,) for group in ("user", "token", "stream", "topic", "group")),
        ("topic", "partitions"),
        *(
            ("user", name)
            for name in "create update delete password permissions list get whoami".split()
        ),
        *(("token", name) for name in ("create", "list", "delete", "revoke")),
        *(("session", name) for name in ("list", "end")),
        *(("cluster", name) for name in ("step-down", "feature-level", "describe")),
        ("audit",),
        *(("stream", name) for name in "create rename delete purge list get".split()),
        *(("topic", name) for name in "create update delete purge list get watermarks".split()),
        ("topic", "find-offsets"),
        *(("topic", "partitions", name) for name in ("add", "remove", "list")),
        *(("group", name) for name in ("create", "delete", "list", "get")),
        *(("group", name) for name in ("offsets", "reset-offsets", "delete-offsets")),
    ],
    ids=" ".join,
)
def test_every_command_explains_itself(command: tuple[str, ...], tmp_path: Path) -> None:
    """Each command exists and has a help text."""
    said = CommandLine("127.0.0.1:1", tmp_path)(*command, "--help")
    assert said.code == 0
    assert "Usage: viewstamp" in said.out
