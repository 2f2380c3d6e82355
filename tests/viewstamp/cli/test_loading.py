"""What a command loads: its own module, and no unneeded one."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.viewstamp.cli.conftest import CommandLine
from viewstamp.cli import commands

# These modules take long to load, and no command that calls a cluster needs them.
SLOW = """
blake3 coordinator opentelemetry prometheus_client pydantic pyspark rich services uvloop
zstandard viewstamp.format viewstamp.snapshots.copies viewstamp.telemetry
""".split()

# The domains of the API, by their module of the client; a command needs one of them, or none.
DOMAINS = {
    "groups": "consumer_groups.v1.consumer_groups_service_pb2",
    "snapshots": "snapshots.v1.snapshots_service_pb2",
    "streams": "streams.v1.streams_service_pb2",
    "users": "users.v1.users_service_pb2",
}

PROGRAM = [sys.executable, "-m", "viewstamp.cli"]

LOADED = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from viewstamp.cli import main
main()
"""


def loaded(*arguments: str, home: Path | None = None) -> set[str]:
    """Return which modules there are when a command has ended; `home` has the logins."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        capture_output=True,
        env=os.environ | ({} if home is None else {"XDG_CONFIG_HOME": str(home)}),
        text=True,
        check=False,
    )
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("name", commands.PLACES)
def test_the_list_says_what_the_commands_say(name: str) -> None:
    """The help in the list, which loads no command, is the first sentence of the command's own."""
    command = commands.with_loaded(name)[name]
    first = " ".join(str(command.help).split("\n\n")[0].split())
    assert commands.PLACES[name].help == first


def test_help_loads_no_command() -> None:
    """Listing the commands loads neither gRPC nor any command."""
    modules = loaded("--help")
    assert "grpc" not in modules
    assert {name for name in modules if name.startswith("viewstamp.cli.")} == {
        "viewstamp.cli.app",
        "viewstamp.cli.commands",
        "viewstamp.cli.completing",
        "viewstamp.cli.contexts",
        "viewstamp.cli.documents",
        "viewstamp.cli.global_options",
        "viewstamp.cli.hoisting",
        "viewstamp.cli.private_files",
        "viewstamp.cli.settings",
    }


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (("stream", "list"), "streams"),
        (("stream", "create", "orders"), "streams"),
        (("status",), "cluster"),
        (("snapshot", "list"), "snapshots"),
        (("import", "wikimedia", "no file"), "imports"),
    ],
)
def test_a_command_loads_what_it_needs(arguments: tuple[str, ...], module: str) -> None:
    """A command of one group loads no other group, and nothing of servers, analysis or frames."""
    modules = loaded("--address", "127.0.0.1:1", *arguments)
    groups = {f"viewstamp.cli.{name}" for name in ("streams", "topics", "snapshots", "imports")}
    assert f"viewstamp.cli.{module}" in modules
    assert not modules & ({*groups, *SLOW} - {f"viewstamp.cli.{module}"})


@pytest.mark.parametrize(
    ("arguments", "domain"),
    [
        (("stream", "create", "orders"), "streams"),
        (("stream", "list"), "streams"),
        (("user", "whoami"), "users"),
        (("status",), None),
    ],
)
def test_a_command_loads_one_domain(
    viewstamp: CommandLine, arguments: tuple[str, ...], domain: str | None
) -> None:
    """A command that the cluster answers has loaded the stubs of the domain it is about, alone."""
    modules = loaded("--address", viewstamp.address, *arguments, home=viewstamp.home)
    assert "viewstamp.client.link" in modules
    assert not modules & {"email", "random", "tempfile", *SLOW}
    clients = {name for name in DOMAINS if f"viewstamp.client.{name}" in modules}
    stubs = {name for name, stub in DOMAINS.items() if f"viewstamp.api.{stub}" in modules}
    assert clients == stubs == {domain} - {None}


@pytest.mark.parametrize(
    "group", ["stream", "topic", "group", "user", "token", "session", "cluster"]
)
def test_the_help_of_a_group_loads_no_client(group: str) -> None:
    """Listing the commands of a group loads neither the client nor gRPC nor protobuf."""
    modules = loaded(group, "--help")
    assert not modules & {"asyncio", "google.protobuf", "grpc", "viewstamp.client", *SLOW}


def test_nothing_is_collected_at_the_end() -> None:
    """The interpreter ends without a look at every object of the modules."""
    code = "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count()))\n"
    ran = [sys.executable, "-c", f"{code}from viewstamp.cli import main; main()", "--version"]
    done = subprocess.run(ran, capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[-1]) > 10_000


def test_the_version_loads_no_command() -> None:
    """Showing the version loads neither gRPC nor any command."""
    modules = loaded("--version")
    assert not modules & {"grpc", "asyncio", "google.protobuf", *SLOW}
    assert not modules & {f"viewstamp.cli.{place.module}" for place in commands.PLACES.values()}


@pytest.mark.parametrize(
    ("words", "offered", "loads"),
    [
        ("viewstamp str", "stream", set()),
        ("viewstamp stream cr", "create", {"streams"}),
        ("viewstamp topic create --part", "--partitions", {"topics"}),
        ("viewstamp snapshot ver", "verify", {"snapshots"}),
    ],
)
def test_completion_loads_the_group_it_completes(words: str, offered: str, loads: set[str]) -> None:
    """TAB loads the group whose commands it offers, no other group, and nothing of servers."""
    place = str(len(words.split()) - 1)
    said, modules = completed({"COMP_WORDS": words, "COMP_CWORD": place})
    assert said == [offered]
    groups = {f"viewstamp.cli.{each.module}" for each in commands.PLACES.values()}
    assert modules & groups == {f"viewstamp.cli.{name}" for name in loads}
    assert not modules & {"coordinator", "services", "pyspark", "rich"}
    assert ("grpc" in modules) == ("snapshots" in loads)


def test_help_and_errors_in_a_pipe_are_plain() -> None:
    """Without a terminal, help and wrong usage are lines of ASCII without frames."""
    for arguments in (["--help"], ["topic", "create", "--help"], ["stream"], ["stram"]):
        done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False)
        assert "Usage: " in done.stdout + done.stderr
        assert (done.stdout + done.stderr).isascii()
        assert "\x1b" not in done.stdout + done.stderr


def completed(variables: dict[str, str]) -> tuple[list[str], set[str]]:
    """Return the completions of TAB in bash, and the modules loaded by then."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED],
        env={**os.environ, **variables, "_VIEWSTAMP_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split(), set(done.stderr.splitlines()[-1].split())


def test_a_wrong_name_is_refused_with_the_one_that_was_meant(viewstamp: CommandLine) -> None:
    """A typing error gets the nearest name, without loading any command."""
    said = viewstamp("stram", "list")
    assert said.code == 2
    assert "Did you mean 'stream'?" in said.err


def test_the_version_is_told(viewstamp: CommandLine) -> None:
    """`--version` prints the installed version."""
    assert viewstamp("--version").out == f"viewstamp {metadata.version('viewstamp')}\n"
