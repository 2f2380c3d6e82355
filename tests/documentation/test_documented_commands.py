"""Every shell command of README, CONTRIBUTING and `docs` works as it stands, or is listed here."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.documentation import kubectl
from tests.documentation.console import (
    APPLY,
    ConsoleCommand,
    Shell,
    broken_blocks,
    commands,
    strange_blocks,
    with_ports,
)
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
GO = "needs Go, which builds kustomize and helm"
STANDALONE = "needs a standalone cluster; tests/analytics/test_standalone_cluster.py has one"
LEVEL = "needs a cluster below the newest level; tests/replicas/test_upgrades.py runs it on one"
# Page and beginning of a command that is not run, and why.
NOT_RUN: Final[dict[tuple[str, str], str]] = {
    ("README.md", "make demo"): "kills every process for a minute; make demo is run by hand and CI",
    ("README.md", "make test"): SUITE,
    ("README.md", "make cluster-test"): MINUTES,
    ("README.md", "make abuse"): MINUTES,
    ("benchmarks/README.md", "apt-get"): INSTALLS,
    ("benchmarks/README.md", "python -m benchmarks.commands >"): MINUTES,
    ("benchmarks/README.md", "python -m benchmarks.failover >"): MINUTES,
    ("benchmarks/README.md", "python -m benchmarks.snapshots >"): MINUTES,
    ("benchmarks/README.md", "python -m benchmarks.size"): MINUTES,
    ("benchmarks/README.md", "python -m benchmarks.state_forms"): MINUTES,
    ("benchmarks/README.md", "python -m benchmarks.analytics >"): MINUTES,
    ("benchmarks/README.md", "make benchmark-analytics"): MINUTES,
    ("benchmarks/README.md", "python -m benchmarks.watchers >"): MINUTES,
    ("docs/add-a-domain.md", "make manifests"): GO,
    ("docs/add-a-domain.md", "make test-deploy"): GO,
    ("docs/operations.md", "make manifests"): GO,
    ("docs/operations.md", "helm"): KUBERNETES,
    ("docs/analytics.md", "viewstamp analyze --data-directory DIR"): STANDALONE,
    ("docs/analytics.md", "spark-submit --master spark"): STANDALONE,
    ("docs/analytics.md", "spark-submit --master k8s"): KUBERNETES,
    ("docs/soak.md", "make soak"): MINUTES,
    ("docs/soak.md", "python -m testkit.soak"): MINUTES,
    ("docs/tla/README.md", "make model"): MINUTES,
    ("docs/operations.md", "viewstamp cluster feature-level --raise"): LEVEL,
    ("docs/operations.md", "docker"): ENGINE,
    ("docs/operations.md", "make image"): ENGINE,
    ("docs/operations.md", "podman"): ENGINE,
    ("docs/operations.md", "ctr"): KUBERNETES,
    ("docs/operations.md", "kind"): KUBERNETES,
    # tests/kubernetes/test_members.py gives these.
    ("docs/kubernetes.md", ""): KUBERNETES,
}


# Page and beginning of what only the long tests run: worked examples, which run tests of their own,
# commands that need Java or half a minute, and pages whose commands have tests of their own.
LONG: Final = [
    ("benchmarks/README.md", ""),
    ("CONTRIBUTING.md", ""),
    ("docs/add-a-domain.md", ""),
    ("docs/analytics.md", ""),
    ("docs/archive.md", ""),
    ("docs/brokers.md", ""),
    ("docs/client.md", ""),
    ("docs/command-line.md", ""),
    ("docs/configuration.md", ""),
    ("docs/consumer-groups.md", ""),
    ("docs/examples.md", ""),
    ("docs/export.md", ""),
    ("docs/history.md", ""),
    ("docs/membership.md", ""),
    ("docs/offsets.md", ""),
    ("docs/operations.md", ""),
    ("docs/quick-start.md", ""),
    ("docs/simulation.md", ""),
    ("docs/restore.md", ""),
    ("docs/snapshots.md", ""),
    ("docs/telemetry.md", ""),
    ("docs/topology.md", ""),
    ("docs/watch.md", ""),
]
# Pages that take more than a minute each: `make test-pages` runs them, with all others.
MINUTES_EACH: Final = {
    "benchmarks/README.md",
    "docs/analytics.md",
    "docs/examples.md",
    "docs/simulation.md",
}
# The command goes on until somebody ends it, which is no failure.
FOLLOW: Final = (
    "timeout --foreground --preserve-status 40 "
    "viewstamp analyze --data-directory data --output followed"
)
# (page, command in the page, smaller command that is run in its place).
SHORTER: Final = [
    ("benchmarks/README.md", "commands --quick", "commands --quick --only create_concurrent"),
    ("benchmarks/README.md", "failover --quick", "failover --kills 1"),
    ("benchmarks/README.md", "snapshots --quick", "snapshots --quick --only changes"),
    ("benchmarks/README.md", "benchmarks.offsets", "benchmarks.offsets --rounds 1 --seconds 1"),
    ("benchmarks/README.md", "analytics --quick", "analytics --spans 20000"),
    ("docs/analytics.md", "viewstamp analyze --data-directory data --output followed", FOLLOW),
    ("docs/simulation.md", "COUNT=200", "COUNT=2"),
]
# Seeds of a campaign that a test may run: a seed may take ten seconds.
SEEDS_MAX: Final = 4


def pages() -> list[tuple[str, str]]:
    """Return name and text of each page."""
    return [(page.relative_to(ROOT).as_posix(), page.read_text()) for page in PAGES]


def begins(command: ConsoleCommand, entry: tuple[str, str]) -> bool:
    """Return whether a command is the one that an entry of a table means."""
    return command.page == entry[0] and command.text.startswith(entry[1])


def is_run(command: ConsoleCommand) -> bool:
    """Return whether a command is run by any test of this file."""
    return not any(begins(command, entry) for entry in NOT_RUN)


def is_quick(command: ConsoleCommand) -> bool:
    """Return whether a command belongs to the tests that run without a marker."""
    return not any(begins(command, entry) for entry in LONG)


def shortened(command: ConsoleCommand) -> ConsoleCommand:
    """Return a command that does less of the same, if the table has one."""
    for page, shown, run in SHORTER:
        if command.page == page:
            command = replace(command, text=command.text.replace(shown, run))
    return command


ALL: Final = {name: commands(name, text) for name, text in pages()}
RUN: Final = {name: list(filter(is_run, found)) for name, found in ALL.items()}
QUICK: Final = {name: list(filter(is_quick, found)) for name, found in RUN.items()}

# The pages with slow commands, each with the marker that says which target runs it.
SLOW: Final = [
    pytest.param(page, marks=pytest.mark.exhaustive if page in MINUTES_EACH else pytest.mark.long)
    for page, found in RUN.items()
    if found != QUICK[page]
]

PATCHED: Final = [
    name for name, found in RUN.items() if any(each.text.startswith(APPLY) for each in found)
]


def run(found: list[ConsoleCommand], directory: Path) -> None:
    """Run commands one after another in one shell."""
    shell = Shell(directory)
    try:
        for command in found:
            shell.run(shortened(command))
    finally:
        shell.close()


@pytest.mark.parametrize("page", [page for page, found in QUICK.items() if found])
def test_commands_of_a_page_work(page: str, tmp_path: Path) -> None:
    """The commands of a page succeed one after another, and print what the page shows."""
    run(QUICK[page], tmp_path)


@pytest.mark.parametrize("page", SLOW)
def test_all_commands_of_a_page_work(page: str, tmp_path: Path) -> None:
    """The slow blocks of a page succeed, too, after the other blocks of the page."""
    run(RUN[page], tmp_path)


@pytest.mark.parametrize("page", PATCHED)
def test_patches_of_the_worked_examples_apply(page: str, tmp_path: Path) -> None:
    """Each patch of the worked examples applies to the tree, or fails where a line was reworded."""
    run([command for command in RUN[page] if command.text.startswith(APPLY)], tmp_path)


def test_worked_examples_have_patches() -> None:
    """The pages with worked examples are found by their patches."""
    assert PATCHED == ["CONTRIBUTING.md", "docs/add-a-domain.md"]


def test_every_block_says_what_it_holds() -> None:
    """A block that may hold shell commands cannot hide behind another language."""
    assert [line for name, text in pages() for line in strange_blocks(name, text)] == []
    assert len(strange_blocks("a", "```sh\nls\n```\n")) == 1
    assert strange_blocks("a", "x\n```\nls\n```\n")[0].startswith("a:2: ``` is none of")
    assert strange_blocks("a", "```text\nthe output of make\n```\n") == []
    assert len(strange_blocks("a", "```text\nviewstamp status\n```\n")) == 1


def test_every_block_is_written_in_its_language() -> None:
    """A block of JSON, YAML or TOML can be parsed, so that a reader can copy it."""
    assert [line for name, text in pages() for line in broken_blocks(name, text)] == []
    assert broken_blocks("a", "```json\n{}\n```\n```toml\na = 1\n```\n") == []
    assert broken_blocks("a", "x\n```json\n{,}\n```\n")[0].startswith("a:2: no json: ")
    assert len(broken_blocks("a", "```yaml\na: [\n```\n```toml\na =\n```\n")) == 2


def test_tables_name_what_is_there() -> None:
    """Each entry of the tables of exceptions still stands in its page."""
    entries = [*NOT_RUN, *LONG, *((page, shown) for page, shown, _ in SHORTER)]
    assert [e for e in entries if not any(e[1] in each.text for each in ALL[e[0]])] == []


def test_no_page_runs_a_whole_campaign() -> None:
    """A campaign that a page shows is shortened here, because a test has ten minutes."""
    run_as = [str(shortened(command)) for found in RUN.values() for command in found]
    counts = [int(count) for text in run_as for count in re.findall(r"COUNT=(\d+)", text)]
    assert counts
    assert max(counts) <= SEEDS_MAX


def test_python_blocks_share_a_namespace(tmp_path: Path) -> None:
    """Python blocks of a page share names and may await; one that fails fails the test."""
    text = "```python\nimport asyncio\n```\n```python\nawait asyncio.sleep(0)\nprint(1)\n```\n"
    shell = Shell(tmp_path)
    try:
        assert [shell.run(block) for block in commands("page.md", text)] == ["", "1\n"]
        for failing in ("nothing", "await", "import viewstamp.nowhere", "raise SystemExit"):
            with pytest.raises(AssertionError, match=r"page\.md:1"):
                shell.run(*commands("page.md", f"```python\n{failing}\n```\n"))
    finally:
        shell.close()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("apply --kustomize deploy/overlay", "is no kustomization"),
        ("--namespace viewstamp scale statefulset/viewstamps --replicas=0", "no overlay has a"),
        ("--namespace viewstamp create secret generic key --from-file=Makefile", "no pod mounts"),
        ("--namespace viewstamp create configmap a --from-literal=b=c", "pods read"),
        ("--namespace viewstamp exec viewstamp-0 -- cat /etc/key", "no command of the"),
        (
            "--namespace viewstamp exec viewstamp-0 -- python -c print(open('/etc/key').read())",
            "no volume holds /etc/key",
        ),
        ("--namespace viewstamp port-forward service/viewstamp 7410", "has the ports"),
        ("--namespace default rollout status statefulset/viewstamp", "no command of the"),
    ],
)
def test_kubectl_refuses_what_no_overlay_has(
    command: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-in for kubectl fails for a name, key, port or path that is not in the manifests."""
    monkeypatch.chdir(ROOT)
    with pytest.raises((kubectl.NotInManifests, OSError), match=reason):
        kubectl.run(command)


def test_ports_are_replaced_at_once() -> None:
    """A port that was put in stays, even if it holds the digits of another port of the pages."""
    free = {7400: 27500, 7500: 27530, 7510: 27400, 7600: 27600, 7610: 27610}
    assert with_ports("localhost:7400 7501 7512", free) == "localhost:27500 27531 27402"


def test_failures_are_seen(tmp_path: Path) -> None:
    """A command that fails, or whose output differs from its page, fails the test."""
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
