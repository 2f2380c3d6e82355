"""Schema, page, variables and flags are those of one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.viewstamp.configuration.test_configuration_layers import COMPLETE, WRONG_FILES
from tools import configuration_reference
from viewstamp.configuration.config_file import SCHEMA_FILE

# The schema cannot see these: YAML itself, or rules about what a text holds.
NOT_IN_SCHEMA = {
    *("twice", "no YAML", "two documents"),
    *("key in place of a path", "PEM in place of a path", "password"),
    *("PEM in place of a certificate", "password without a scheme", "NUL"),
    *("octal", "underscore", "endless number"),  # a schema does not see how a number is written
    "no switch",  # to the parser of the test, `yes` is true
}


def schema() -> Any:
    """Return the schema that is shipped."""
    return json.loads(SCHEMA_FILE.read_text())


def test_reference_is_up_to_date() -> None:
    """The schema and the page are what the flags of the programs make them."""
    for path, text in configuration_reference.files().items():
        assert path.read_text() == text, "run python -m tools.configuration_reference"


def test_stale_files_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--check` fails for a page that is not what it would be, and leaves it alone."""
    page = tmp_path / "configuration.md"
    page.write_text(configuration_reference.MARK + "\nold\n")
    monkeypatch.setattr(configuration_reference, "PAGE", page)
    assert configuration_reference.main(["--check"]) == 1
    assert page.read_text().endswith("old\n")
    assert configuration_reference.main([]) == 0
    assert configuration_reference.main(["--check"]) == 0


def test_variables_differ() -> None:
    """No two settings share a variable, but for the transport, which is that of all programs."""
    tables = configuration_reference.tables().values()
    variables = [each.variable for table in tables for each in table if each.name != "transport"]
    assert len(variables) == len(set(variables)) > 50


@pytest.mark.parametrize("case", sorted(WRONG_FILES.keys() - NOT_IN_SCHEMA))
def test_schema_refuses_what_programs_refuse(case: str) -> None:
    """An editor with the schema marks the files that a start refuses."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(WRONG_FILES[case][0]), schema())


def test_schema_accepts_what_programs_accept() -> None:
    """Lists, maps, switches and null are right for the schema, too."""
    right = {**COMPLETE, "channelz": True, "listen": None, "peer": ["1=a:1"], "trace-ratio": 0.5}
    jsonschema.validate({"coordinator": right, "services": {"log-level": "debug"}}, schema())
    jsonschema.validate(None, schema())
