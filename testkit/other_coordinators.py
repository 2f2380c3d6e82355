"""Programs in the place of coordinators: the shipped one, with something added or wrong."""

from __future__ import annotations

from dataclasses import replace

from viewstamp.cluster import Program
from viewstamp.cluster.local import COORDINATOR


def run_instead(program: Program, *words: str) -> Program:
    """Return a coordinator that runs as `python -m WORDS FLAGS...`; other programs stay."""
    if program.name != COORDINATOR:
        return program
    command = list(program.command)
    at = command.index("coordinator")
    command[at : at + 1] = words
    return replace(program, command=tuple(command))
