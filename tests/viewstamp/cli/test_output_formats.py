"""`--output`: tables, JSON, YAML and names, at any place of a command line."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

import pytest
import yaml

from tests.viewstamp.cli.conftest import CommandLine
from tests.viewstamp.cli.test_helpful_options import TYPER, commands_below
from viewstamp.cli.canonical import NAMING_COMMANDS, part, split_places
from viewstamp.cli.documents import OutputFormat
from viewstamp.cli.hoisting import OWN_OUTPUT, asked_output, hoist

# Commands that print entities, and what they print with `-o name`.
PRINTING: Final = (
    ("stream list", "shop"),
    ("stream get shop", "shop"),
    ("topic list shop", "shop/orders"),
    ("topic get shop orders", "shop/orders"),
    ("group list shop orders", "shop/orders/billing"),
    ("group get shop orders billing", "shop/orders/billing"),
    ("user list", "root"),
    ("user get root", "root"),
    ("user whoami", "root"),
    ("token list", "nightly"),
    ("token list --user root", "root/nightly"),
    ("snapshot list", "1"),
    ("snapshot show 1", "1"),
    ("topic partitions list shop orders", None),
    ("topic watermarks shop orders", None),
    ("topic find-offsets shop orders --duration 2h", None),
    ("group offsets shop orders billing", None),
    ("status", None),
    ("cluster feature-level", None),
)
# A name of each kind that a shell or the grammar of names would take for something else.
AWKWARD: Final = ("a/b", "two words", "12", "-x", "name:y", "star*", "ünïcode")


@pytest.fixture
def shop(real: CommandLine) -> CommandLine:
    """A command line at a cluster with a stream, a topic, a group, a token and a snapshot."""
    if real("stream", "get", "shop").code:
        real("stream", "create", "shop")
        real("topic", "create", "shop", "orders", "--partitions", "4")
        real("group", "create", "shop", "orders", "billing")
        real("token", "create", "nightly")
        real("snapshot", "create", "--retention", "pinned")
    return real


@pytest.mark.parametrize(("command", "name"), PRINTING)
def test_yaml_shows_what_json_shows(shop: CommandLine, command: str, name: str | None) -> None:
    """YAML has the values of JSON; names are canonical, or the command says that it has none."""
    as_json, as_yaml, as_name = (
        shop(*command.split(), "-o", output) for output in ("json", "yaml", "name")
    )
    assert without_time(yaml.safe_load(as_yaml.out)) == without_time(as_json.data)
    if name is None:
        assert (as_name.code, as_name.out) == (2, "")
        assert f"NO_NAMES: `viewstamp {' '.join(command.split()[:2])}" in as_name.err
    else:
        assert name in as_name.out.splitlines()


def without_time(value: object) -> str:
    """Return values as text without what changes from one call to the next."""
    if isinstance(value, dict):
        value = {key: each for key, each in value.items() if key not in ("replicas", "services")}
    return json.dumps(value, sort_keys=True)


@pytest.mark.parametrize("awkward", AWKWARD)
def test_each_name_is_an_argument(shop: CommandLine, awkward: str) -> None:
    """What a list prints by `-o name` is one word, and leads to the entity, in a loop as well."""
    made = shop("stream", "create", "-o", "name", "--", awkward)
    word = made.out.strip()
    assert made.code == 0 and len(word.split()) == 1
    shop("topic", "create", word, "--", awkward)
    (topic,) = shop("topic", "list", word, "-o", "name").out.splitlines()
    shop("group", "create", topic, awkward if awkward != "-x" else "x-")
    (group,) = shop("group", "list", topic, "-o", "name").out.splitlines()
    assert shop("stream", "get", word, "--json").data["name"] == awkward
    assert shop("topic", "get", topic, "--json").data["name"] == awkward
    assert group.startswith(f"{topic}/")
    assert shop("group", "get", group, "--json").data["topic_id"] > 0
    assert shop("stream", "delete", word, "--yes").code == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [("orders", "orders"), ("12", "7"), ("a/b", "7"), ("-x", "7"), ("name:x", "7"), ("²", "²")],
)
def test_an_id_stands_for_a_name_that_is_no_word(name: str, expected: str) -> None:
    """A name that would be read as something else is given by its id."""
    assert part(name, 7) == expected


@pytest.mark.parametrize(
    ("names", "values", "split"),
    [
        ("stream topic", ["a/b", None], {"stream": "a", "topic": "b"}),
        ("stream topic", ["a/b", "c"], {}),
        ("stream topic", ["a", None], {}),
        ("stream topic group", ["a/b/c", None, None], {"stream": "a", "topic": "b", "group": "c"}),
        ("stream topic group", ["a/b", "c", None], {"stream": "a", "topic": "b", "group": "c"}),
        ("stream topic group", ["a/b", None, None], {}),
        ("user name", ["root/t/1", None], {"user": "root", "name": "t/1"}),
        ("name topic", ["a/b", None], {}),
        ("stream topic", [None, None], {}),
    ],
)
def test_a_canonical_name_is_split_where_arguments_lack(
    names: str, values: list[str | None], split: dict[str, str]
) -> None:
    """Only a call without all of its arguments is read as one with a canonical name."""
    assert split_places(names.split(), values) == split


def test_a_command_without_names_changes_nothing(shop: CommandLine) -> None:
    """A command that has no names says so before it does anything."""
    shop("stream", "create", "spared")
    said = shop("stream", "delete", "spared", "--yes", "-o", "name")
    assert said.code == 2
    assert "give another --output: table, json or yaml" in said.err
    assert shop("stream", "get", "spared").code == 0


def test_the_tables_name_real_commands() -> None:
    """Commands with names exist; `-o` is the format everywhere; some have their own --output."""
    found = {path.partition(" ")[2]: each for path, each in commands_below(TYPER, "viewstamp")}
    assert found.keys() >= NAMING_COMMANDS
    leaves = {path: each for path, each in found.items() if path}
    options = {path: [o for p in each.params for o in p.opts] for path, each in leaves.items()}
    assert [path for path, opts in options.items() if "-o" in opts] == []
    own = {tuple(path.split()) for path, opts in options.items() if "--output" in opts}
    assert own == OWN_OUTPUT


@pytest.mark.parametrize(
    ("given", "hoisted", "asked"),
    [
        ("stream list -o yaml", "-o yaml stream list", "yaml"),
        ("stream list -oyaml", "-oyaml stream list", "yaml"),
        ("stream list --output=name", "--output=name stream list", "name"),
        ("stream list --output json", "--output json stream list", "json"),
        ("stream list --json", "--json stream list", "json"),
        ("stream -o", "-o stream", "table"),
        ("stream list -o xml", "-o xml stream list", "table"),
        ("snapshot export --output d -o json", "-o json snapshot export --output d", "json"),
        ("-o yaml analyze --output d", "-o yaml analyze --output d", "yaml"),
        ("stream create -- -o", "stream create -- -o", "table"),
        ("", "", "table"),
    ],
)
def test_the_format_may_stand_anywhere(given: str, hoisted: str, asked: str) -> None:
    """`--output` and `-o` are read wherever they stand, unless the command has its own."""
    assert hoist(given.split()) == hoisted.split()
    assert asked_output(given.split()) is OutputFormat(asked)


@pytest.mark.parametrize("arguments", [("stream", "get", "nowhere"), ("stream", "get")])
def test_errors_have_the_form_of_the_output(shop: CommandLine, arguments: tuple[str, ...]) -> None:
    """Refusals and wrong usage are a JSON or YAML document on stderr, and a line for people."""
    as_json, as_yaml = (shop(*arguments, "-o", output) for output in ("json", "yaml"))
    assert yaml.safe_load(as_yaml.err)["error"] == as_json.error
    assert as_json.error.keys() == {"reason", "message", "next_step", "details"}
    by_variable = shop(*arguments, variables={"VIEWSTAMP_OUTPUT": "json"})
    assert by_variable.error == as_json.error
    for_people = shop(*arguments, "-o", "name").err
    assert not for_people.lstrip().startswith("{")


def test_json_wins_over_the_environment_and_not_over_an_option(shop: CommandLine) -> None:
    """`--json` is `-o json`: it beats VIEWSTAMP_OUTPUT, and contradicts another `-o`."""
    said = shop("stream", "list", "--json", variables={"VIEWSTAMP_OUTPUT": "yaml"})
    assert isinstance(said.data, list)
    both = shop("stream", "list", "--json", "-o", "yaml")
    assert both.code == 2
    assert "--json and --output yaml contradict" in both.err


def test_only_yaml_loads_its_library() -> None:
    """Neither a table nor JSON waits for the library of YAML."""
    program = "import sys; from viewstamp.cli import output, session; print('yaml' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
