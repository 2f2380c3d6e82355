"""The shell of snapshots: its commands, their output for people and programs, and its endings."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.viewstamp.cli.conftest import CommandLine, Said
from tests.viewstamp.snapshots.generations import SECRETS, SnapshotDirectory, flip
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.cli.settings import Settings
from viewstamp.cli.snapshot_shell import SnapshotPrompt
from viewstamp.snapshots.copies import Copies, copy_directories
from viewstamp.snapshots.explore.state_explorer import StateExplorer

TERMINAL_TIMEOUT_S: Final = 60.0
MANY: Final = 300


def run(offline: CommandLine, path: Path, *commands: str, more: tuple[str, ...] = ()) -> Said:
    """What the shell says to commands."""
    options = [word for text in commands for word in ("--command", text)]
    return offline("snapshot", "shell", "--data", str(path), *options, *more)


def answers(offline: CommandLine, path: Path, *commands: str) -> list[Any]:
    """The answers as documents."""
    said = run(offline, path, *commands, more=("--json",))
    assert said.code == 0, said.err
    return [json.loads(line) for line in said.out.splitlines()]


def many_streams(path: Path) -> Path:
    """A data directory with many streams."""
    replica = SnapshotDirectory(path / "many")
    replica.snapshot(
        streams_pb2.StreamEntity(id=id_, name=f"stream-{id_:03}") for id_ in range(1, MANY + 1)
    )
    return replica.path


@pytest.mark.parametrize(
    ("command", "out"),
    [
        ("ls", "streams/\nusers/\nbrokers/\nsessions/\nsnapshots/\nsections/\n"),
        ("ls /streams", "stream-1/\n"),
        ("ls /users/anna/tokens", "ci\nci%2Fcd\n"),
        ("tree /users/anna --depth 2", "tokens/\n  ci\n  ci%2Fcd\n"),
        ("tree --depth 1 /users", "root/\nanna/\n"),
        ("find 'ann*'", "/users/anna\n"),
        ("find / ci/cd", "/users/anna/tokens/ci%2Fcd\n"),
        ("find /streams topic where id < 3", "/streams/stream-1/topics/topic-2\n"),
        ('find user where username ~ "r*"', "/users/root\n"),
        ("pwd", "@2 /\n"),
        ("generation", "1\n2 (this one)\n"),
        ("exit", ""),
    ],
)
def test_commands(offline: CommandLine, replica: SnapshotDirectory, command: str, out: str) -> None:
    """Each command prints for people what the page says."""
    said = run(offline, replica.path, command)
    assert (said.code, said.out, said.err) == (0, out, "")


def test_help_names_every_command(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """`help` and the options explain each command of the shell."""
    told = run(offline, replica.path, "help").out
    overview = offline("snapshot", "shell", "--help").out
    for name in ("ls", "cat", "tree", "find", "cd", "generation", "pwd", "help", "exit"):
        assert name in told
        assert name in overview


def test_the_path_stays(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """Another generation is looked at from the same path, which may have nothing there."""
    found = answers(
        offline,
        replica.path,
        *("cd /streams/stream-1", "cd topics", "cat ../topics/2", "cd @1", "ls"),
        *("cd /users/ann", "generation 2", "pwd", "generation 1", "cat .", "cd"),
    )
    assert [one["generation"] for one in found] == [2, 2, 2, 1, 1, 1, 2, 2, 1, 1, 1]
    assert found[1]["path"] == "/streams/stream-1/topics"
    assert (found[2]["entity"], found[2]["kind"]) == ("/streams/stream-1/topics/topic-2", "topics")
    assert found[2]["values"]["name"] == "topic-2"
    assert (found[3]["is_there"], found[3]["cut_revision"]) == (True, 100)
    assert (found[6]["is_there"], found[7]["path"]) == (False, "/users/ann")
    assert found[9]["values"]["username"] == "ann"
    assert found[10]["path"] == "/"
    told = run(offline, replica.path, "cd @1", "cd /users/ann", "cd @2")
    assert told.err == "/users of generation 2 has no 'ann'; the path stays /users/ann\n"


def test_the_first_generation_is_chosen(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """`--generation` says where to begin; a downloaded copy is a directory, too."""
    for path in (replica.path, replica.copies[1]):
        assert run(offline, path, "pwd", more=("--generation", "1")).out == "@1 /\n"


def test_no_secret_is_shown(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """No command shows a hash of a password or token, or a reply, wherever it looks."""
    paths = answers(offline, replica.path, "tree --depth 10 --limit 10000 /")[0]["places"]
    cats = [f"cat {one['path']}" for one in paths if one["kind"]]
    assert {one["kind"] for one in paths} >= {"users", "personal_access_tokens", "replies"}
    commands = ("tree --depth 10 --limit 10000 /", "find / '*'", *cats)
    for more in ((), ("--json",), ("-o", "yaml")):
        said = run(offline, replica.path, *commands, more=more)
        assert said.code == 0
        for secret in SECRETS:
            assert secret.decode() not in said.out
            assert secret.hex() not in said.out


def test_lists_are_pages(offline: CommandLine, tmp_path: Path) -> None:
    """A list ends after 100 places, says so, and can be continued until everything was there."""
    path = many_streams(tmp_path)
    seen: list[str] = []
    command = "ls /streams"
    for _ in range(3):
        (page,) = answers(offline, path, command)
        assert page["is_more"] is (len(seen) < 200)
        seen += [one["name"] for one in page["places"]]
        command = f"ls /streams --after {seen[-1]}"
    assert seen == [f"stream-{number:03}" for number in range(1, MANY + 1)]
    said = run(offline, path, "ls /streams --limit 7")
    assert len(said.out.splitlines()) == 7
    assert said.err == "more are left: go on with --after stream-007\n"
    for command in ("find / 'stream-*' --limit 7", "find --limit 7 stream", "tree --limit 7"):
        said = run(offline, path, command)
        assert len(said.out.splitlines()) <= 7
    assert "more is left" in run(offline, path, "tree --limit 7").err
    assert "more is left" in run(offline, path, "find --limit 7 stream where id > 0").err
    assert run(offline, path, "find nobody").err == "nothing is there\n"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("lst", "BAD_COMMAND"),
        ("ls --depth 3", "BAD_COMMAND"),
        ("ls --limit", "BAD_COMMAND"),
        ("ls --limit 0", "BAD_COMMAND"),
        ("ls --limit x", "BAD_COMMAND"),
        ("ls --limit 10001", "BAD_COMMAND"),
        ("ls --limit " + "9" * 5000, "BAD_COMMAND"),
        ("tree --depth 11", "BAD_COMMAND"),
        ("ls a b", "BAD_COMMAND"),
        ("ls 'a", "BAD_COMMAND"),
        ("find", "BAD_COMMAND"),
        ("find a b c", "BAD_COMMAND"),
        ("cd @x", "BAD_COMMAND"),
        ("generation -1", "BAD_COMMAND"),
        ("generation 7", "NO_SUCH_GENERATION"),
        ("cat /streams", "NO_SUCH_PATH"),
        ("cat /streams/nobody", "NO_SUCH_PATH"),
        ("ls /streams --after nobody", "NO_SUCH_PATH"),
        ("cd /users/nobody", "NO_SUCH_PATH"),
        ("find topic where nam == 1", "BAD_EXPRESSION"),
    ],
)
def test_errors_end_a_script(
    offline: CommandLine, replica: SnapshotDirectory, command: str, reason: str
) -> None:
    """A wrong command exits with 2 and its reason, and no later command runs."""
    said = run(offline, replica.path, command, "pwd", more=("--json",))
    assert (said.code, said.out, said.error["reason"]) == (2, "", reason)
    assert said.error["next_step"]


def test_damage(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """A bad copy is warned of once; without a good one the script exits with 1."""
    layers = sorted((replica.copies[0] / "layers").iterdir())
    for layer in layers:
        flip(layer)
    said = run(offline, replica.path, "ls /streams", "ls /streams", "ls /streams", more=("--json",))
    assert said.code == 0
    warned = [json.loads(line)["warning"]["message"] for line in said.err.splitlines()]
    assert len(set(warned)) == len(warned) == 2
    for copy in replica.copies[1:]:
        for layer in layers:
            flip(copy / "layers" / layer.name)
    said = run(offline, replica.path, "ls /streams", "pwd", more=("--json",))
    assert (said.code, said.error["reason"]) == (1, "ALL_COPIES_BAD")
    missing = run(offline, replica.path / "nothing", "ls", more=("--json",))
    assert (missing.code, missing.error["reason"]) == (2, "NO_SUCH_DIRECTORY")


def test_commands_from_a_pipe(offline: CommandLine, replica: SnapshotDirectory) -> None:
    """Lines of a pipe are commands; there is no prompt, and the first error ends."""
    shell = ("snapshot", "shell", "--data", str(replica.path))
    said = offline(*shell, answer="ls /streams\n\ncd /users\npwd\nexit\nls\n")
    assert (said.code, said.out) == (0, "stream-1/\n@2 /users\n")
    said = offline(*shell, answer="ls /nothing\npwd\n")
    assert (said.code, said.out) == (2, "")
    assert "NO_SUCH_PATH" in said.err


@pytest.fixture
def prompt(replica: SnapshotDirectory) -> Iterator[SnapshotPrompt]:
    """A prompt at the root of generation 2."""
    explorer = StateExplorer(Copies(copy_directories(replica.path)), 0)
    yield SnapshotPrompt(Settings(), explorer, for_scripts=True)
    explorer.close()


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("/str", ["/streams/"]),
        ("/s", ["/streams/", "/sessions/", "/snapshots/", "/sections/"]),
        ("us", ["users/"]),
        ("/users/", ["/users/root/", "/users/anna/"]),
        ("/users/a", ["/users/anna/"]),
        ("/users/anna/tokens/ci%", ["/users/anna/tokens/ci%2Fcd "]),
        ("/nothing/x", []),
        ("/users/z", []),
    ],
)
def test_paths_are_completed(prompt: SnapshotPrompt, text: str, offered: list[str]) -> None:
    """TAB offers the paths that begin with what was typed, and nothing where nothing is."""
    assert prompt.completedefault(text) == offered


def test_commands_are_completed(prompt: SnapshotPrompt) -> None:
    """TAB offers the commands that begin with what was typed."""
    assert prompt.completenames("c") == ["cat ", "cd "]


def test_a_terminal(replica: SnapshotDirectory) -> None:
    """On a terminal there is a prompt, TAB completes, an error does not end, and Ctrl-D does."""
    arguments = ["-m", "viewstamp.cli", "snapshot", "shell", "--data", str(replica.path)]
    terminal, inner = pty.openpty()
    variables = {**os.environ, "TERM": "dumb"}
    child = subprocess.Popen(
        [sys.executable, *arguments], stdin=inner, stdout=inner, stderr=inner, env=variables
    )
    said = _until(terminal, "@2 /> ")
    assert "`help` lists the commands" in said
    os.write(terminal, b"cd /us\tan\t\n")
    _until(terminal, "@2 /users/anna> ")
    os.write(terminal, b"cat nobody\n")
    assert "NO_SUCH_PATH" in _until(terminal, "@2 /users/anna> ")
    os.write(terminal, b"\x04")
    assert child.wait(TERMINAL_TIMEOUT_S) == 0
    os.close(terminal)
    os.close(inner)


def _until(terminal: int, text: str) -> str:
    """Read from a terminal until it has shown a text at its end."""
    said, deadline = "", time.monotonic() + TERMINAL_TIMEOUT_S
    while not said.endswith(text):
        assert time.monotonic() < deadline, f"{said!r} does not end with {text!r}"
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 4096).decode()
    return said
