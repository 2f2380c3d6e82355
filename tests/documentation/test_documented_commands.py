"""Every shell command of README, CONTRIBUTING and `docs` works as it stands, or is listed here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.documentation.console import Command, Shell, commands, strange_blocks
from tests.tidy.tree import ROOT

PAGES: Final = [
    ROOT / "README.md",
    *[page for page in (ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md") if page.exists()],
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
INSTALLS = "installs software on the machine"
MINUTES = "takes minutes: CI or somebody who needs its figures runs it"
SUITE = "is the test suite of which this test is a part"
ENGINE = "needs a container engine"
KUBERNETES = "needs a Kubernetes cluster"
SPARK = "needs Java and Spark; tests/analytics runs the same entry points"
MACHINES = (
    "needs machines, names or sockets of the reader's; tests/replicas starts the same processes"
)
GENERATIONS = (
    "names the reader's directories and generations; tests/viewstamp/snapshots runs each form"
)
LEVEL = "needs a cluster below the newest level; tests/replicas/test_upgrades.py raises one"
# Page and beginning of a command that is not run, and why.
NOT_RUN: Final[dict[tuple[str, str], str]] = {
    ("README.md", "make demo"): "kills every process for a minute; make demo is run by hand and CI",
    ("README.md", "make test"): SUITE,
    ("README.md", "make cluster-test"): MINUTES,
    ("README.md", "make abuse"): MINUTES,
    ("benchmarks/README.md", "apt-get"): INSTALLS,
    ("benchmarks/README.md", "python -m benchmarks"): MINUTES,
    ("benchmarks/README.md", "make benchmark-analytics"): MINUTES,
    ("docs/analytics.md", "viewstamp analyze"): SPARK,
    ("docs/analytics.md", "python -m analytics"): SPARK,
    ("docs/analytics.md", "spark-submit"): SPARK,
    ("docs/export.md", "viewstamp snapshot export"): GENERATIONS,
    ("docs/operations.md", "python -m coordinator"): MACHINES,
    ("docs/operations.md", "viewstamp cluster feature-level --raise"): LEVEL,
    ("docs/operations.md", "docker"): ENGINE,
    ("docs/operations.md", "kind"): KUBERNETES,
    ("docs/operations.md", "kubectl"): KUBERNETES,
    ("docs/operations.md", "python -m services.runtime.probe"): MACHINES,
    ("docs/simulation.md", "make simulate"): MINUTES,
    ("docs/snapshots.md", "viewstamp snapshot diff"): GENERATIONS,
}


def pages() -> list[tuple[str, str]]:
    """Return name and text of each page."""
    return [(page.relative_to(ROOT).as_posix(), page.read_text()) for page in PAGES]


def reason(command: Command) -> str | None:
    """Return why a command is not run, None if it is."""
    for (page, beginning), why in NOT_RUN.items():
        if command.page == page and command.text.startswith(beginning):
            return why
    return None


ALL: Final = {name: commands(name, text) for name, text in pages()}
RUN: Final = {
    name: [command for command in found if reason(command) is None]
    for name, found in ALL.items()
    if any(reason(command) is None for command in found)
}


# Its worked examples run tests of their own.
LONG: Final = "CONTRIBUTING.md"


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] if page == LONG else []) for page in RUN]
)
def test_commands_of_a_page_work(page: str, tmp_path: Path) -> None:
    """The commands of a page succeed one after another, and print what the page shows."""
    shell = Shell(tmp_path)
    try:
        for command in RUN[page]:
            shell.run(command)
    finally:
        shell.close()


def test_every_block_says_what_it_holds() -> None:
    """A block that may hold shell commands cannot hide behind another language."""
    assert [line for name, text in pages() for line in strange_blocks(name, text)] == []
    assert len(strange_blocks("a", "```sh\nls\n```\n")) == 1
    assert strange_blocks("a", "x\n```\nls\n```\n")[0].startswith("a:2: ``` is none of")


def test_what_is_not_run_is_there() -> None:
    """Each entry of the table of commands that are not run still stands in its page."""
    unused = [
        entry
        for entry in NOT_RUN
        if not any(command.text.startswith(entry[1]) for command in ALL.get(entry[0], []))
    ]
    assert unused == []


def test_failures_are_seen(tmp_path: Path) -> None:
    """A command that fails, or prints something else than its page shows, fails the test."""
    text = "```console\n$ cd docs && ls \\\n    vsr.md\nvsr...md\n$ ls nowhere\n$ echo a\nb\n```\n"
    works, fails, differs = commands("page.md", text)
    shell = Shell(tmp_path)
    try:
        assert shell.run(works) == "vsr.md\n"
        with pytest.raises(AssertionError, match="exit code 2"):
            shell.run(fails)
        with pytest.raises(AssertionError, match="lacks 'b'"):
            shell.run(differs)
    finally:
        shell.close()
