"""`viewstamp watch`, and lists with --watch: lines for people and programs, endings, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.viewstamp.cli.conftest import CommandLine, gateway
from tests.viewstamp.client.fake_feed import change_of
from viewstamp.api.consumer_groups.v1 import consumer_groups_pb2
from viewstamp.api.streams.v1 import streams_pb2
from viewstamp.api.users.v1 import users_pb2
from viewstamp.api.watch.v1 import watch_service_pb2 as watch_pb2
from viewstamp.cli.documents import OutputFormat
from viewstamp.cli.following import change_line
from viewstamp.cli.settings import Settings

# A shell starts what runs in the background without Ctrl-C, and children inherit that.
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from viewstamp.cli import main
main()
"""
# What the feed has, as the command shows it.
LINES = [
    "       2  created  stream  s1 (stream 1)",
    "       2  created  stream  s2 (stream 2)",
    "       5  updated  stream  new (stream 1)",
    "       6  deleted  stream  s2 (stream 2)",
]
STREAM = "viewstamp.api.streams.v1.Stream"


@pytest.fixture
def viewstamp(tmp_path: Path) -> Iterator[CommandLine]:
    """The command line of root, at a feed of this test alone."""
    with gateway("fake_feed") as address:
        line = CommandLine(address, tmp_path)
        assert line.log_in().code == 0
        yield line


@contextmanager
def started(
    line: CommandLine, *arguments: str, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a process of its own, which ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "--address", line.address, *arguments],
        env={**os.environ, "XDG_CONFIG_HOME": str(line.home), "PYTHONPATH": str(Path.cwd())},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def read(process: subprocess.Popen[str], count: int) -> list[str]:
    """Return the next lines of a running command."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def test_changes_are_lines(viewstamp: CommandLine) -> None:
    """Each change is a line with revision, kind, type, name and ids; --count ends the command."""
    said = viewstamp("watch", "--from-revision", "1", "--count", "4")
    assert (said.code, said.out.splitlines(), said.err) == (0, LINES, "")


def test_changes_are_json_lines(viewstamp: CommandLine) -> None:
    """With --json each line is an object with the entity, without what a change does not have."""
    said = viewstamp("watch", "--from-revision", "1", "--count", "4", "--json")
    found = [json.loads(line) for line in said.out.splitlines()]
    assert [(each["revision"], each["kind"]) for each in found] == [
        (2, "created"),
        (2, "created"),
        (5, "updated"),
        (6, "deleted"),
    ]
    assert found[2]["entity"] == {
        "id": 1,
        "name": "new",
        "created_at": None,
        "created_revision": 0,
        "modified_revision": 5,
        "purge_generation": 0,
    }
    ids = {"stream_id": 1, "topic_id": 0, "group_id": 0, "user_id": 0}
    assert found[2].items() >= {"type": STREAM, **ids}.items()


def test_a_type_narrows_it_down(viewstamp: CommandLine) -> None:
    """--type asks the cluster for that type alone: nothing else is shown."""
    with started(viewstamp, "watch", "--from-revision", "1", "--type", "topic") as process:
        with started(viewstamp, "watch", "--from-revision", "1", "--type", "stream") as other:
            assert read(other, 4) == LINES
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate()
    assert out == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_ctrl_c_ends_it(viewstamp: CommandLine, as_json: bool) -> None:
    """Ctrl-C ends the command without a traceback, and it says where to go on."""
    flags = ["--json"] if as_json else []
    with started(viewstamp, "watch", "--from-revision", "1", *flags) as process:
        assert len(read(process, 4)) == 4
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    told = "watched up to revision 7: go on with --from-revision 8\n"
    assert (process.returncode, err) == (130, "" if as_json else told)


def test_a_reader_that_is_gone_ends_it(viewstamp: CommandLine) -> None:
    """A command whose output nobody reads ends in silence, as in `viewstamp watch | head`."""
    reading, writing = os.pipe()
    os.close(reading)
    with started(viewstamp, "watch", "--from-revision", "1", stdout=writing) as process:
        os.close(writing)
        _, err = process.communicate()
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--topic", "t"], "--topic needs its --stream"),
        (["--stream", "s", "--group", "g"], "--group needs its --stream and --topic"),
        (["--domain", "sessions"], "'sessions' is not one of 'users', 'streams', 'groups'"),
        (["--type", "partition"], "'partition' is not one of 'user', 'token', 'stream', 'topic'"),
        (["--from-revision", "-1"], "-1 is not in the range 0<=x<="),
    ],
)
def test_wrong_usage_is_told(viewstamp: CommandLine, arguments: list[str], told: str) -> None:
    """Filters that say nothing together, and unknown words, are refused with what is right."""
    said = viewstamp("watch", *arguments)
    assert said.code == 2
    assert told in " ".join(said.err.replace("│", " ").split())


def test_an_unknown_stream_names_the_next_step(viewstamp: CommandLine) -> None:
    """A watch of a stream that is not there is refused, and says how to find one."""
    said = viewstamp("watch", "--stream", "nothing")
    assert said.code == 1
    assert said.err.startswith("error: STREAM_NOT_FOUND")
    assert "Next: see `viewstamp stream list`." in said.err


def test_a_list_is_followed(viewstamp: CommandLine) -> None:
    """`stream list --watch` shows a table, then the changes since; an empty table is left out."""
    assert viewstamp("stream", "create", "orders").code == 0
    with started(viewstamp, "stream", "list", "--watch") as process:
        title, row = read(process, 2)
        assert (title.split()[:2], row.split()[:2]) == (["id", "name"], ["10", "orders"])
        assert viewstamp("stream", "create", "later").code == 0
        (line,) = read(process, 1)
        assert line.endswith("created  stream  later (stream 11)")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130


def test_a_list_is_followed_as_json(viewstamp: CommandLine) -> None:
    """With --json the entities of the list are lines, too, of the kind `listed`."""
    assert viewstamp("stream", "create", "orders").code == 0
    with started(viewstamp, "stream", "list", "--watch", "--json") as process:
        (listed,) = map(json.loads, read(process, 1))
        assert (listed["kind"], listed["type"], listed["entity"]["name"]) == (
            "listed",
            STREAM,
            "orders",
        )
        assert viewstamp("stream", "create", "later").code == 0
        (created,) = map(json.loads, read(process, 1))
        assert (created["kind"], created["entity"]["name"]) == ("created", "later")
        assert created["revision"] > listed["revision"]


@pytest.mark.parametrize(
    ("entity", "ids", "told"),
    [
        (users_pb2.User(id=3, username="alice"), {"user_id": 3}, "user    alice (user 3)"),
        (users_pb2.User(id=0, username="root"), {}, "user    root"),
        (
            streams_pb2.Topic(id=2, name="two\nlines"),
            {"stream_id": 1, "topic_id": 2},
            "topic   two lines (stream 1, topic 2)",
        ),
        (
            consumer_groups_pb2.ConsumerGroup(id=4, name="g"),
            {"stream_id": 1, "topic_id": 2, "group_id": 4},
            "group   g (stream 1, topic 2, group 4)",
        ),
    ],
    ids=["user", "root", "topic", "group"],
)
def test_any_entity_is_one_line(entity: Any, ids: dict[str, int], told: str) -> None:
    """A line names the entity as people know it, with all its ids, whatever its name holds."""
    change = change_of(12, entity)
    change.ClearField("stream_id")
    change.MergeFrom(watch_pb2.Change(**ids))  # type: ignore[arg-type]
    assert change_line(Settings(), change) == f"      12  created  {told}"


def test_an_entity_of_a_newer_cluster_is_shown() -> None:
    """A type that this build does not know is a line with its full name, and null as JSON."""
    change = watch_pb2.Change(revision=3, kind=watch_pb2.CHANGE_KIND_DELETED, entity_type="a.v2.B")
    assert change_line(Settings(), change) == "       3  deleted  a.v2.B  -"
    assert json.loads(change_line(Settings(output=OutputFormat.json), change))["entity"] is None
