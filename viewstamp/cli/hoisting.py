"""Global options: they stand before the command or behind it, and are read before all else."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from viewstamp.cli.documents import OutputFormat

OUTPUT_OPTIONS: Final = ("--output", "-o")
OUTPUT_VARIABLE: Final = "VIEWSTAMP_OUTPUT"
# Options allowed before and after the command; True if a value follows the option.
GLOBAL_OPTIONS: Final = {
    "--json": False,
    "--output": True,
    "-o": True,
    "--context": True,
    "--address": True,
    "--tls-ca": True,
    "--timeout": True,
}
# Commands with an `--output` of their own, a directory. There `-o` is the format.
OWN_OUTPUT: Final = frozenset({("analyze",), ("snapshot", "download"), ("snapshot", "export")})


def hoist(arguments: Iterable[str]) -> list[str]:
    """Return the arguments with global options first; arguments after `--` stay in place."""
    front, rest = _parted(arguments)
    return [*front, *rest]


def is_open(arguments: Iterable[str]) -> bool:
    """Whether the last argument is a global option whose value is to come."""
    front, rest = _parted(arguments)
    return "--" not in rest and GLOBAL_OPTIONS.get(front[-1] if front else "", False)


def asked_output(arguments: Iterable[str]) -> OutputFormat:
    """Return the format that the arguments ask for, else the environment, even if they are wrong.

    An error of usage is told in this format.
    """
    asked = os.environ.get(OUTPUT_VARIABLE, "")
    front, _ = _parted(arguments)
    for option, following in pairwise([*front, ""]):
        name, separator, value = option.partition("=")
        if option == "--json":
            return OutputFormat.json
        if name in OUTPUT_OPTIONS:
            asked = value if separator else following
        elif _is_joined(option):
            asked = option.removeprefix("-o")
    known = (output for output in OutputFormat if output.value == asked)
    return next(known, OutputFormat.table)


def _parted(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the global options with their values, and all other arguments."""
    front: list[str] = []
    rest: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if argument == "--":
            return front, [*rest, argument, *queue]
        name, separator, _ = argument.partition("=")
        if _is_joined(argument):
            front.append(argument)
        elif name not in GLOBAL_OPTIONS or (name == "--output" and _has_own_output(rest)):
            rest.append(argument)
        else:
            front.append(argument)
            if GLOBAL_OPTIONS[name] and not separator and queue:
                front.append(queue.pop(0))
    return front, rest


def _is_joined(argument: str) -> bool:
    """Whether an argument is `-o` with its value, as in `-oyaml`."""
    return argument.startswith("-o") and len(argument) > len("-o")


def _has_own_output(rest: Iterable[str]) -> bool:
    words = [argument for argument in rest if not argument.startswith("-")]
    return tuple(words[:1]) in OWN_OUTPUT or tuple(words[:2]) in OWN_OUTPUT
