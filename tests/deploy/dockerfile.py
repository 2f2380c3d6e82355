"""Reads a Dockerfile's instructions: it tells what an image contains without building it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

_CONTINUED: Final = re.compile(r"\\\n")
# Docker's own names; any other name is a misspelling.
_KNOWN: Final = frozenset(
    "FROM ENV WORKDIR COPY RUN LABEL USER EXPOSE STOPSIGNAL CMD ARG ENTRYPOINT".split()
)


class DockerfileError(ValueError):
    """A line that is no instruction."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `arguments` is everything after the name, on one line."""

    name: str
    arguments: str

    @property
    def words(self) -> list[str]:
        """The arguments of a JSON form, or the words of any other form."""
        if self.arguments.startswith("["):
            return [str(word) for word in json.loads(self.arguments)]
        return self.arguments.split()


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage: its base image, its name, and its instructions after FROM."""

    base: str
    name: str
    instructions: tuple[Instruction, ...]

    def all(self, name: str) -> list[Instruction]:
        """Return the instructions of a name, in order."""
        return [instruction for instruction in self.instructions if instruction.name == name]

    def last(self, name: str) -> Instruction:
        """Return the last instruction of a name; it is the one in force. Raises IndexError."""
        return self.all(name)[-1]


def parse(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile. Raises DockerfileError."""
    without_comments = "".join(
        line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("#")
    )
    instructions = []
    for line in _CONTINUED.sub(" ", without_comments).splitlines():
        if line.strip():
            name, _, arguments = line.strip().partition(" ")
            if name not in _KNOWN:
                raise DockerfileError(f"{name!r} is no instruction: {line}")
            instructions.append(Instruction(name, " ".join(arguments.split())))
    return instructions


def stages(instructions: list[Instruction]) -> list[Stage]:
    """Return the stages; arguments before the first are `global_arguments`.

    Raises DockerfileError if a stage has no name or another instruction stands before it.
    """
    found: list[Stage] = []
    for instruction in instructions:
        if instruction.name == "FROM":
            match = re.fullmatch(r"(\S+) AS (\S+)", instruction.arguments)
            if match is None:
                raise DockerfileError(f"FROM {instruction.arguments}: write FROM image AS name")
            found.append(Stage(match[1], match[2], ()))
        elif not found and instruction.name == "ARG":
            continue
        elif not found:
            raise DockerfileError(f"{instruction.name} stands before the first FROM")
        else:
            last = found[-1]
            found[-1] = Stage(last.base, last.name, (*last.instructions, instruction))
    return found


def global_arguments(instructions: list[Instruction]) -> dict[str, str]:
    """Return the defaults of the arguments that stand before the first stage."""
    names = [instruction.name for instruction in instructions]
    before = instructions[: names.index("FROM")]
    return {name: value for name, _, value in (one.arguments.partition("=") for one in before)}


def chain(stages: list[Stage], name: str) -> list[Stage]:
    """Return a stage and those that it is made from, the first one first. Raises KeyError."""
    by_name = {stage.name: stage for stage in stages}
    found = [by_name[name]]
    while found[0].base in by_name:
        found.insert(0, by_name[found[0].base])
    return found


def whole(stages: list[Stage], name: str) -> Stage:
    """Return a stage with the instructions of all that it is made from. Raises KeyError."""
    parts = chain(stages, name)
    return Stage(parts[0].base, name, tuple(one for part in parts for one in part.instructions))


def copied_from_context(stage: Stage) -> list[PurePosixPath]:
    """Return what a stage copies out of the repository."""
    return [
        PurePosixPath(word)
        for copy in stage.all("COPY")
        if not copy.words[0].startswith("--from=")
        for word in copy.words[:-1]
    ]


def admitted(ignore_file: str) -> set[str]:
    """Return the top-level names that a `.dockerignore` admits; it must exclude all others."""
    lines = [line for line in ignore_file.splitlines() if line and not line.startswith("#")]
    if lines[0] != "*":
        raise DockerfileError(".dockerignore must begin with `*`: name what the image needs")
    return {line.removeprefix("!") for line in lines if line.startswith("!")}
