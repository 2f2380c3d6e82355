"""TAB offers names from the cluster: in the protocol of typer, against a real replica."""

from __future__ import annotations

import asyncio
import socket

import pytest

from tests.viewstamp.cli.conftest import CommandLine, Said
from viewstamp.cli import completing
from viewstamp.cli.hoisting import is_open


@pytest.fixture
def bar(real: CommandLine) -> CommandLine:
    """A command line at a cluster with names of several kinds."""
    if real("stream", "get", "bar").code:
        real("stream", "create", "bar")
        real("stream", "create", "bar stool")
        real("topic", "create", "bar", "taps", "--partitions", "1")
        real("group", "create", "bar", "taps", "guests")
        real("token", "create", "barkeeper")
        real("snapshot", "create", "--retention", "pinned")
        real("context", "set", "barn", "--timeout", "5")
    return real


def tab(line: CommandLine, words: str, **variables: str | None) -> Said:
    """Return what TAB in bash says at the end of `words`."""
    place = len(words.split()) - (not words.endswith(" "))
    protocol = {
        "_VIEWSTAMP_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": f"{place}",
    }
    return line(variables={**protocol, **variables})


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("viewstamp stream get bar", {"bar"}),
        ("viewstamp topic list ba", {"bar"}),
        ("viewstamp topic get bar ", {"taps"}),
        ("viewstamp topic get bar/", {"bar/taps"}),
        ("viewstamp topic get bar/taps ", set()),
        ("viewstamp stream get bar/", set()),
        ("viewstamp group get bar taps g", {"guests"}),
        ("viewstamp group get bar/taps/", {"bar/taps/guests"}),
        ("viewstamp group get nowhere taps ", set()),
        ("viewstamp user get ro", {"root"}),
        ("viewstamp session list --user ro", {"root"}),
        ("viewstamp token delete bark", {"barkeeper"}),
        ("viewstamp token revoke root bark", {"barkeeper"}),
        ("viewstamp watch --stream bar --topic t", {"taps"}),
        ("viewstamp stream list --output y", {"yaml"}),
        ("viewstamp stream list -o ta", {"table"}),
    ],
)
def test_names_of_the_cluster_are_offered(bar: CommandLine, words: str, offered: set[str]) -> None:
    """Each argument that names an entity is completed by those that are there."""
    said = tab(bar, words)
    assert (set(said.out.split()), said.err) == (offered, "")


def test_a_name_that_is_no_word_is_offered_by_its_id(bar: CommandLine) -> None:
    """TAB offers what a shell takes as one word."""
    stream = bar("stream", "get", "bar stool", "--json").data
    assert str(stream["id"]) in tab(bar, "viewstamp stream get ").out.split()


def test_generations_are_offered(bar: CommandLine) -> None:
    """Snapshots are completed by the numbers that are there."""
    there = bar("snapshot", "list", "-o", "name").out.split()
    assert tab(bar, "viewstamp snapshot show ").out.split() == there != []


@pytest.mark.parametrize(
    "words",
    ["viewstamp --context b", "viewstamp stream list --context ba", "viewstamp context use b"],
)
def test_contexts_are_offered_without_a_cluster(stranger: CommandLine, words: str) -> None:
    """Names of contexts come from their file, at each place where one is named."""
    stranger("context", "set", "barn", "--timeout", "5")
    assert tab(stranger, words, VIEWSTAMP_ADDRESS="127.0.0.1:1").out.split() == ["barn"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("stream list -o", True), ("stream -o yaml", False), ("x -- -o", False), ("--json", False)],
)
def test_an_option_without_its_value_is_seen(arguments: str, expected: bool) -> None:
    """TAB behind a global option is about the value of it."""
    assert is_open(arguments.split()) is expected


@pytest.mark.parametrize(
    ("address", "context"),
    [("127.0.0.1:1", None), ("nowhere", None), (None, "nowhere")],
)
def test_trouble_offers_nothing_and_says_nothing(
    bar: CommandLine, address: str | None, context: str | None
) -> None:
    """No cluster, a wrong address or context: no name, no error, and exit code 0."""
    said = tab(
        bar,
        "viewstamp stream get b",
        VIEWSTAMP_ADDRESS=address or bar.address,
        VIEWSTAMP_CONTEXT=context,
    )
    assert (said.code, said.out.strip(), said.err) == (0, "", "")


def test_who_is_not_logged_in_is_asked_nothing(stranger: CommandLine) -> None:
    """Without a login nothing is offered, and no question asked."""
    said = tab(stranger, "viewstamp stream get b")
    assert (said.code, said.out.strip(), said.err) == (0, "", "")


def test_the_next_replica_answers_for_a_silent_one(
    bar: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that accepts a connection and says nothing has a share of the deadline alone."""
    shares_s: list[float | None] = []
    timeout = asyncio.timeout

    def noted(delay_s: float | None) -> asyncio.Timeout:
        shares_s.append(delay_s)
        return timeout(delay_s)

    monkeypatch.setattr(completing, "DEADLINE_S", 2.0)
    monkeypatch.setattr(asyncio, "timeout", noted)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]},{bar.address}"
        said = tab(bar, "viewstamp stream get bar", VIEWSTAMP_ADDRESS=address)
    assert said.out.split() == ["bar"]
    assert shares_s.count(1.0) == 2
