"""The echo domain as a process of its own: `python -m tests.services.runtime.echo_process`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from services.runtime.domain import Domain
from services.runtime.process import run
from tests.services.runtime import echo


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the key file, as the users service has one."""
    parser.add_argument("--key", type=Path)


def build(options: argparse.Namespace) -> Domain[echo.EchoState]:
    """Return the domain; the key must be readable and not empty."""
    if options.key is not None and not options.key.read_text():
        raise ValueError(f"{options.key}: is empty; it must hold a key")
    return echo.DOMAIN


if __name__ == "__main__":
    sys.exit(run("echo", build, add_arguments))
