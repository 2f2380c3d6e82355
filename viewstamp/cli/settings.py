"""The global options, and how a command reports that it failed."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

from viewstamp.cli.documents import OutputFormat, document_line

DEFAULT_ADDRESS: Final = "localhost:7400"
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_UNANSWERED: Final = 4
# `plan`, `diff`, `doctor` and `log` found something to do; no error has this code.
EXIT_CHANGES: Final = 5
CONNECT_TIMEOUT_MAX_S: Final = 5.0
PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the global options."""

    address: str = DEFAULT_ADDRESS
    output: OutputFormat = OutputFormat.table
    tls_ca: Path | None = None
    timeout_s: float = 30.0

    @property
    def for_programs(self) -> bool:
        """Whether the output is a document, and nobody is there to answer questions."""
        return self.output in (OutputFormat.json, OutputFormat.yaml)

    @property
    def addresses(self) -> list[str]:
        """The replicas that `address` lists, separated by commas."""
        return [address.strip() for address in self.address.split(",") if address.strip()]

    @property
    def connect_timeout_s(self) -> float:
        """How long to try to reach the cluster."""
        return min(self.timeout_s, CONNECT_TIMEOUT_MAX_S)


def settings_of(context: typer.Context) -> Settings:
    """Return the global options; report if the command cannot print names as they ask, and exit."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace import get_current_span

        get_current_span().update_name(context.command_path)  # without arguments
    settings: Settings = context.obj
    if settings.output is OutputFormat.name:
        _check_that_names_are_printed(settings, context.command_path)
    return settings


def _check_that_names_are_printed(settings: Settings, path: str) -> None:
    # Imported late: few ask for names.
    from viewstamp.cli.canonical import NAMING_COMMANDS

    if path.partition(" ")[2] not in NAMING_COMMANDS:
        step = "give another --output: table, json or yaml"
        fail(settings, "NO_NAMES", f"`{path}` has no names to print", step)


def told(error: OSError) -> str:
    """Return a text that names a file that cannot be read or written, and the cause."""
    if error.filename is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


def fail(
    settings: Settings,
    reason: str,
    message: str,
    next_step: str = "",
    *,
    exit_code: int = EXIT_USAGE,
    details: dict[str, str] | None = None,
) -> NoReturn:
    """Report an error on stderr, as one line or as a document, and exit."""
    tell(settings, reason, message, next_step, details)
    raise typer.Exit(exit_code)


def tell(
    settings: Settings,
    reason: str,
    message: str,
    next_step: str,
    details: dict[str, str] | None = None,
) -> None:
    """Tell an error on stderr, as one line or as a document: JSON in one line, or YAML."""
    if settings.for_programs:
        error: dict[str, Any] = {"reason": reason, "message": message, "next_step": next_step}
        told_error = {"error": {**error, "details": details or {}}}
        typer.echo(document_line(settings.output, told_error), err=True)
        return
    hint = f" Next: {next_step}." if next_step else ""
    sentence = " ".join(message.split())
    ended = sentence if sentence.endswith((".", "!", "?")) else sentence + "."
    typer.echo(f"error: {reason}: {ended}{hint}", err=True)
