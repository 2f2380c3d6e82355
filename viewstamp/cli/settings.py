"""The global options, and how a command reports that it failed."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import typer

DEFAULT_ADDRESS: Final = "localhost:7400"
EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNREACHABLE: Final = 3
EXIT_UNANSWERED: Final = 4
CONNECT_TIMEOUT_MAX_S: Final = 5.0
PORT_MAX: Final = 65_535


@dataclass(frozen=True, slots=True)
class Settings:
    """The values of the global options."""

    address: str = DEFAULT_ADDRESS
    as_json: bool = False
    tls_ca: Path | None = None
    timeout_s: float = 30.0

    @property
    def addresses(self) -> list[str]:
        """The replicas that `address` lists, separated by commas."""
        return [address.strip() for address in self.address.split(",") if address.strip()]

    @property
    def connect_timeout_s(self) -> float:
        """How long to try to reach the cluster."""
        return min(self.timeout_s, CONNECT_TIMEOUT_MAX_S)


def settings_of(context: typer.Context) -> Settings:
    """Return the global options."""
    if "opentelemetry.trace" in sys.modules:
        from opentelemetry.trace import get_current_span

        get_current_span().update_name(context.command_path)  # without arguments
    settings: Settings = context.obj
    return settings


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
    """Report an error on stderr, as one line or as JSON, and exit."""
    tell(settings, reason, message, next_step, details)
    raise typer.Exit(exit_code)


def tell(
    settings: Settings,
    reason: str,
    message: str,
    next_step: str,
    details: dict[str, str] | None = None,
) -> None:
    """Tell an error on stderr, as one line or as JSON."""
    if settings.as_json:
        error: dict[str, Any] = {"reason": reason, "message": message, "next_step": next_step}
        typer.echo(json.dumps({"error": {**error, "details": details or {}}}), err=True)
        return
    hint = f" Next: {next_step}." if next_step else ""
    sentence = " ".join(message.split())
    ended = sentence if sentence.endswith((".", "!", "?")) else sentence + "."
    typer.echo(f"error: {reason}: {ended}{hint}", err=True)
