"""What a command loads: its own module, and nothing that it does not need."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

from tests.viewstamp.cli.conftest import CommandLine
from viewstamp.cli import commands

# What takes long to load, and no command of the cluster's needs.
SLOW = """
coordinator opentelemetry.sdk prometheus_client pydantic pyspark rich services uvloop zstandard
""".split()

LOADED = """
import sys
from viewstamp.cli.app import app
try:
    app({arguments!r}, prog_name="viewstamp")
except SystemExit:
    pass
print(*sys.modules, file=sys.stderr)
"""


def loaded(*arguments: str) -> set[str]:
    """Return which modules there are when a command has ended."""
    code = LOADED.format(arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize("name", commands.PLACES)
def test_the_list_says_what_the_commands_say(name: str) -> None:
    """The help in the list, which loads no command, is the first sentence of the command's own."""
    command = commands.with_loaded(name)[name]
    first = " ".join(str(command.help).split("\n\n")[0].split())
    assert commands.PLACES[name].help == first


def test_help_loads_no_command() -> None:
    """To list the commands, neither gRPC nor any command is loaded."""
    modules = loaded("--help")
    assert "grpc" not in modules
    assert {name for name in modules if name.startswith("viewstamp.cli.")} == {
        "viewstamp.cli.app",
        "viewstamp.cli.commands",
        "viewstamp.cli.settings",
    }


@pytest.mark.parametrize(
    ("arguments", "module"),
    [
        (("stream", "list"), "streams"),
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


def test_a_wrong_name_is_refused_with_the_one_that_was_meant(viewstamp: CommandLine) -> None:
    """A typing error gets the nearest name, though no command was loaded."""
    said = viewstamp("stram", "list")
    assert said.code == 2
    assert "Did you mean 'stream'?" in said.err


def test_the_version_is_told(viewstamp: CommandLine) -> None:
    """`--version` prints the version of what is installed."""
    assert viewstamp("--version").out == f"viewstamp {metadata.version('viewstamp')}\n"
