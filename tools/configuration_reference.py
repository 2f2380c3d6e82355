"""Make the reference of the settings from the programs: the JSON schema and the tables of a page.

    python -m tools.configuration_reference [--check]

With `--check` nothing is written; the exit code is 1 if a file is not what it would be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from coordinator.app import config
from services.runtime.process import program_of
from services.users.__main__ import add_arguments
from tools.configuration_schema import schema_document
from viewstamp.cli.commands import with_loaded
from viewstamp.cli.up_configuration import settings_of_options
from viewstamp.configuration import ProgramSetting, settings_of_parser
from viewstamp.configuration.config_file import SCHEMA_FILE, SERVICES_SECTION
from viewstamp.configuration.layers import of_section
from viewstamp.configuration.program import COORDINATOR_SECTION, UP_SECTION
from viewstamp.routing import SERVICE_NAMES

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"
# What stands behind this line of the page is generated.
MARK: Final = "<!-- Made by `python -m tools.configuration_reference`. -->"


def tables() -> dict[str, tuple[ProgramSetting, ...]]:
    """Return the settings of each section of the file, as the programs have them."""
    services = {
        name: settings_of_parser(
            name, program_of(name, add_arguments if name == "users" else lambda _: None).parser
        )
        for name in SERVICE_NAMES
    }
    return {
        UP_SECTION: settings_of_options(with_loaded(UP_SECTION)[UP_SECTION]),
        COORDINATOR_SECTION: settings_of_parser(COORDINATOR_SECTION, config.parser()),
        SERVICES_SECTION: of_section(services["streams"], SERVICES_SECTION),
        **services,
    }


def files() -> dict[Path, str]:
    """Return each generated file with its text."""
    found = tables()
    schema = json.dumps(schema_document(found), indent=2, ensure_ascii=False) + "\n"
    written = PAGE.read_text().partition(MARK)[0]
    sections = [_section(name, table, found) for name, table in found.items()]
    return {SCHEMA_FILE: schema, PAGE: "\n\n".join([written + MARK, *sections]) + "\n"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.configuration_reference")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args(arguments)
    stale = [path for path, text in files().items() if path.read_text() != text]
    for path in stale:
        if options.check:
            print(f"{path} is stale: run python -m tools.configuration_reference")
        else:
            path.write_text(files()[path])
    return int(options.check and bool(stale))


def _section(
    name: str, table: Sequence[ProgramSetting], found: dict[str, tuple[ProgramSetting, ...]]
) -> str:
    head = f"### Section `{name}`\n\n"
    shared = {each.name for each in found[SERVICES_SECTION]}
    own = [each for each in table if name not in SERVICE_NAMES or each.name not in shared]
    if len(own) < len(table):
        head += f"All of the section `{SERVICES_SECTION}`, for this service alone, and:\n\n"
    return head + "\n".join(["| setting | default | what |", "|---|---|---|", *map(_row, own)])


def _row(setting: ProgramSetting) -> str:
    text = " ".join(setting.help.replace("|", "\\|").replace("<", "&lt;").split())
    return f"| `{setting.name}` | {_default(setting)} | {text} |"


def _default(setting: ProgramSetting) -> str:
    if setting.is_required or setting.flag == "--service":
        return "must be given"
    if setting.default is False:
        return "off"
    return "none" if setting.default in (None, []) else f"`{setting.default}`"


if __name__ == "__main__":
    sys.exit(main())
