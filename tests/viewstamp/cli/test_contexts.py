"""Contexts: which value of a global option counts, and the file that keeps contexts."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.viewstamp.cli.conftest import CommandLine, gateway
from viewstamp.cli.contexts import NamedContext
from viewstamp.cli.documents import OutputFormat
from viewstamp.cli.global_options import settings_from
from viewstamp.cli.settings import DEFAULT_ADDRESS, Settings

KEPT = NamedContext(address="context:1", timeout_s=3.0, output="yaml")


@pytest.mark.parametrize(
    ("options", "variables", "named", "address", "timeout_s"),
    [
        ({}, {}, NamedContext(), DEFAULT_ADDRESS, 30.0),
        ({}, {}, KEPT, "context:1", 3.0),
        ({}, {"address": "variable:1"}, KEPT, "variable:1", 3.0),
        ({}, {"address": "variable:1", "timeout": 2.0}, KEPT, "variable:1", 2.0),
        ({"address": "option:1"}, {"address": "variable:1"}, KEPT, "option:1", 3.0),
        ({"context_name": "c"}, {"address": "variable:1"}, KEPT, "context:1", 3.0),
        ({"context_name": "c"}, {"address": "variable:1"}, NamedContext(), "variable:1", 30.0),
        ({"context_name": "c", "address": "option:1"}, {}, KEPT, "option:1", 3.0),
        ({}, {"context_name": "c", "address": "variable:1"}, KEPT, "variable:1", 3.0),
        ({"timeout": 1.0}, {}, KEPT, "context:1", 1.0),
    ],
)
def test_what_is_nearest_to_the_call_counts(
    options: dict[str, Any],
    variables: dict[str, Any],
    named: NamedContext,
    address: str,
    timeout_s: float,
) -> None:
    """An option stands before a variable, and that before a context, unless it is an option."""
    settings = settings_from(options, variables, named)
    assert (settings.address, settings.timeout_s) == (address, timeout_s)


@pytest.mark.parametrize(
    ("options", "variables", "output"),
    [
        ({}, {}, "yaml"),
        ({}, {"output": OutputFormat.name}, "name"),
        ({"output": OutputFormat.table}, {"output": OutputFormat.name}, "table"),
        ({"as_json": True}, {"output": OutputFormat.name}, "json"),
    ],
)
def test_the_format_is_decided_in_the_same_way(
    options: dict[str, Any], variables: dict[str, Any], output: str
) -> None:
    """Option, variable, context: and --json is an option."""
    assert settings_from(options, variables, KEPT).output is OutputFormat(output)


@pytest.mark.parametrize(
    ("named", "complaint"),
    [
        (NamedContext(address="nowhere"), "`nowhere` is no address"),
        (NamedContext(tls_ca="/nowhere/ca.crt"), "No such file"),
        (NamedContext(timeout_s=0.0), "the context's timeout_s is 0.0: 0.1 or more"),
        (NamedContext(output="xml"), "the context's output is 'xml': give one of table, json"),
    ],
)
def test_a_bad_value_in_a_context_is_named(named: NamedContext, complaint: str) -> None:
    """A file that somebody wrote by hand is checked like options are."""
    with pytest.raises(typer.BadParameter, match=complaint):
        settings_from({}, {}, named)


def test_an_empty_context_changes_nothing() -> None:
    """Without options, variables and context, the settings are the defaults."""
    assert settings_from({}, {}, NamedContext()) == Settings()


def test_a_context_names_a_cluster(stranger: CommandLine) -> None:
    """A context is set, used, shown and deleted, and leads commands to its cluster and login."""
    elsewhere = {"VIEWSTAMP_ADDRESS": None}
    said = stranger("context", "set", "local", "--address", stranger.address, "--timeout", "5")
    assert said.out == "set context local; use it: `viewstamp context use local`\n"
    file = stranger.home / "viewstamp" / "contexts.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    login = ("login", "--password-file", str(stranger.password_file), "--context", "local")
    assert stranger(*login, variables=elsewhere).code == 0
    for chosen in ({"VIEWSTAMP_CONTEXT": "local"}, {}):
        assert stranger("stream", "list", variables={**elsewhere, **chosen}).code == 0
        assert stranger("context", "use", "local").out == "context local is in use\n"
    row = {"name": "local", "in_use": True, "address": stranger.address}
    assert stranger("context", "show", "--json").data == {
        **row,
        "tls_ca": None,
        "timeout_s": 5.0,
        "output": None,
    }
    assert stranger("context", "list", "-o", "name").out == "local\n"
    assert stranger("context", "use", "--none").out == "no context is in use\n"
    assert stranger("context", "show").err.startswith("error: NO_CONTEXT: no context is in use")
    assert stranger("context", "delete", "local").out == "deleted context local\n"
    assert "no contexts yet" in stranger("context", "list").out


def test_a_context_named_for_the_command_beats_the_environment(stranger: CommandLine) -> None:
    """`--context` leads to its cluster although VIEWSTAMP_ADDRESS names another one."""
    with gateway() as other:
        stranger("context", "set", "other", "--address", other)
        login = ("login", "--password-file", str(stranger.password_file), "--json")
        assert stranger(*login, "--context", "other").data["address"] == other
        by_variable = stranger(*login, variables={"VIEWSTAMP_CONTEXT": "other"})
        assert by_variable.data["address"] == stranger.address


def test_a_context_keeps_what_is_given_with_it(stranger: CommandLine, tmp_path: Path) -> None:
    """Only options of this call are kept, an authority by its full path; each can be unset."""
    stranger("context", "set", "prod", "--address", "a:1,b:1", "-o", "yaml", "--use")
    kept = json.loads((stranger.home / "viewstamp" / "contexts.json").read_text())
    assert kept["in_use"] == "prod"
    assert kept["contexts"]["prod"]["output"] == "yaml"
    said = stranger("context", "set", "prod", "--timeout", "9", "--unset", "output", "--json")
    assert said.data["output"] == "json"
    said = stranger("context", "set", "prod", "--unset", "output", "--unset", "address")
    shown = stranger("context", "show", "prod", "--json").data
    assert (shown["address"], shown["timeout_s"], shown["output"]) == (None, 9.0, None)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("stream", "list", "--context", "nowhere"), "there is no context 'nowhere'; there are:"),
        (("context", "use", "nowhere"), "NO_CONTEXT: there is no context 'nowhere'"),
        (("context", "use"), "give a name, or --none"),
        (("context", "set", "a b"), "'a b' is no name for a context"),
        (("context", "delete", "nowhere"), "see `viewstamp context list`"),
    ],
)
def test_a_wrong_name_is_told(
    stranger: CommandLine, arguments: tuple[str, ...], reason: str
) -> None:
    """A context that is not there is named together with those that are."""
    said = stranger(*arguments)
    assert said.code == 2
    assert reason in " ".join(said.err.split())


@pytest.mark.parametrize("text", ["[]", "{", '{"in_use": null, "contexts": {"a": {"b": 1}}}'])
def test_a_damaged_file_is_told(stranger: CommandLine, text: str) -> None:
    """A file that cannot be read is named, by commands that use contexts or change them."""
    stranger("context", "set", "local", "--timeout", "5")
    (stranger.home / "viewstamp" / "contexts.json").write_text(text)
    for arguments in (("stream", "list"), ("context", "list")):
        said = stranger(*arguments)
        assert said.code == 2
        assert "contexts.json is damaged: correct it" in " ".join(said.err.split())
