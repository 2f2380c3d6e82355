"""Shell commands of the documentation: found in its pages, and run in a copy of the repository.

In a block that begins with ```console, a command stands behind each `$ `. It goes on in the next
line after a backslash or behind a `>`. The lines below it are its output, in which `...` stands for
anything. A command that ends with `&` starts a cluster: the next command runs when that cluster is
ready. A block that begins with ```diff is a patch, which is applied. A block that begins with
```python runs in its place among the commands, in one interpreter for each page.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from tests.documentation.interpreter import Interpreter
from tests.tidy.tree import ROOT

FENCE: Final = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
CONSOLE: Final = "console"
PATCH: Final = "diff"
PYTHON: Final = "python"
TEXT: Final = "text"
COMMAND: Final = re.compile(r"^(?:\$|viewstamp|python|make|kubectl) ", re.MULTILINE)
# Languages without commands, each with a parser that raises ValueError for wrong content.
PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "json": json.loads,
    TEXT: str,
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}
# A block without a language, or with another one, is not allowed.
LANGUAGES: Final = frozenset({CONSOLE, PATCH, PYTHON, *PARSERS})
# One line of context suffices, so that a change nearby does not break a worked example.
APPLY: Final = "git apply -C1"
PROMPT: Final = "$ "
STAND_IN: Final = "kubectl"
# `viewstamp up` prints this once its cluster serves.
READY: Final = "stop: Ctrl-C"
READY_TIMEOUT_S: Final = 60
POLL_S: Final = 0.05
# Ports that the pages name, and how many follow each: another process may use them here.
PORTS: Final = {7400: 3, 7500: 3, 7510: 3, 7600: 2, 7610: 2}
PORTS_FROM: Final = range(20_000, 30_000, 10)
# Workers have neighbouring process ids. The next port of a neighbour must not be in a block that
# one worker has chosen and does not listen on yet.
BLOCKS_PER_PROCESS: Final = 37
PIP_STAMPS: Final = ("runtime", "analytics", "dev")


@dataclass(frozen=True, slots=True)
class ConsoleCommand:
    """A command or Python block: its line in the page, its text, the output that the page shows."""

    page: str
    line: int
    text: str
    output: tuple[str, ...] = ()
    language: str = CONSOLE

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def blocks(page: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, language and content of each fenced block of a page."""
    for match in FENCE.finditer(text):
        content = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        yield text.count("\n", 0, match.start()) + 1, match[2], content


def strange_blocks(page: str, text: str) -> list[str]:
    """Return a line per block whose language is unknown, or hides commands."""
    found = []
    for line, language, content in blocks(page, text):
        if language not in LANGUAGES:
            known = ", ".join(sorted(LANGUAGES))
            found.append(f"{page}:{line}: ```{language} is none of {known}")
        elif language == TEXT and COMMAND.search(content) is not None:
            found.append(f"{page}:{line}: ```{TEXT} holds a command: write ```{CONSOLE}")
    return found


def broken_blocks(page: str, text: str) -> list[str]:
    """Return a line per block that its language cannot parse."""
    found = []
    for line, language, content in blocks(page, text):
        try:
            PARSERS.get(language, str)(content)
        except (ValueError, yaml.YAMLError) as error:
            found.append(f"{page}:{line}: no {language}: {error}")
    return found


def commands(page: str, text: str) -> list[ConsoleCommand]:
    """Return the commands of a page in order. Raises ValueError for output without a command."""
    found: list[ConsoleCommand] = []
    for line, language, content in blocks(page, text):
        if language == CONSOLE:
            found += _commands_of_block(page, line, content)
        elif language == PATCH:
            found.append(ConsoleCommand(page, line, f"{APPLY} <<'PATCH'\n{content}PATCH"))
        elif language == PYTHON:
            found.append(ConsoleCommand(page, line, content, language=PYTHON))
    return found


def _commands_of_block(page: str, line: int, content: str) -> Iterator[ConsoleCommand]:
    """Yield the commands of one block, each with the output below it."""
    joined = re.sub(r"\\\n(> )?", r"\\\0", content)
    parts = re.split(r"^\$ ", joined, flags=re.MULTILINE)
    if parts[0]:
        raise ValueError(f"{page}:{line}: a console block begins with `{PROMPT}`, not {parts[0]!r}")
    for part in parts[1:]:
        first, *rest = part.splitlines()
        more = [each[2:] for each in rest if each.startswith(">")]
        output = tuple(each for each in rest if each and not each.startswith(">"))
        text = "\n".join([first.split("   #")[0].strip(), *more]).replace("\0", "\n")
        yield ConsoleCommand(page, line, text, output)


class Shell:
    """A bash in a copy of the repository, which is killed with all that it started at the end."""

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "tree"
        self._copy()
        self._background = directory / "background"
        self._log = directory / "shell"
        self._ports = {port: _free_ports(count) for port, count in PORTS.items()}
        self._variables = self._environment(directory)
        self._interpreter: Interpreter | None = None
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=self.tree,
            env=self._variables,
            stdin=subprocess.PIPE,
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: ConsoleCommand) -> str:
        """Run a command and return its output; an AssertionError if it fails."""
        text = self._with_ports(command.text)
        if command.language == PYTHON:
            return self._run_python(command, text)
        if text.endswith("&"):
            return self._run_behind(command, text.removesuffix("&"))
        done = self._told(f"{text}\n")
        assert done[1] == 0, f"{command}\nexit code {done[1]}:\n{done[0]}"
        for line in command.output:
            pattern = r".*".join(map(re.escape, self._with_ports(line).split("...")))
            assert re.search(pattern, done[0]), f"{command}\nlacks {line!r} in:\n{done[0]}"
        return done[0]

    def close(self) -> None:
        """End the shell and everything it started."""
        if self._interpreter is not None:
            self._interpreter.close()
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()

    def _run_python(self, command: ConsoleCommand, text: str) -> str:
        """Run a block after the blocks before it on its page."""
        if self._interpreter is None:
            log = self.tree.with_name("python")
            log.touch()
            self._interpreter = Interpreter(self.tree, self._variables, log)
        return self._interpreter.run(f"{command.page}:{command.line}", text)

    def _run_behind(self, command: ConsoleCommand, text: str) -> str:
        """Start a cluster, and return its output up to the line that says it is ready."""
        log = self._background
        # Bash opens the file a moment later, and an earlier cluster may have left a log there.
        log.write_text("")
        _, code = self._told(f"{text} >{log} 2>&1 &\n")
        assert code == 0, str(command)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while READY not in log.read_text():
            assert time.monotonic() < deadline, f"{command}\nnot ready:\n{log.read_text()}"
            time.sleep(POLL_S)
        return log.read_text()

    def _told(self, text: str) -> tuple[str, int]:
        """Run a text in bash; return its output and exit code."""
        assert self._bash.stdin is not None
        before = self._log.stat().st_size
        self._bash.stdin.write(f'eval {_quoted(text)} </dev/null\necho "[exit $?]"\n')
        self._bash.stdin.flush()
        while True:
            said = self._log.read_bytes()[before:].decode()
            if (end := re.search(r"\[exit (\d+)\]\n\Z", said)) is not None:
                return said[: end.start()], int(end[1])
            assert self._bash.poll() is None, f"the shell has ended: {said}"
            time.sleep(POLL_S)

    def _copy(self) -> None:
        """Copy what git tracks or would track, with an environment that needs no installation."""
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True)
        for name in filter(None, done.stdout.split("\0")):
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        # The tidy tests ask git which files there are.
        subprocess.run(["git", "init", "--quiet"], cwd=self.tree, check=True)
        environment = self.tree / ".venv"
        environment.mkdir()
        for entry in (ROOT / ".venv").iterdir():
            if not entry.name.startswith(".stamp"):
                (environment / entry.name).symlink_to(entry.resolve())
        for stamp in PIP_STAMPS:
            (environment / f".stamp-{stamp}").touch()

    def _environment(self, directory: Path) -> dict[str, str]:
        """Return variables that keep a newcomer's commands inside the directory."""
        home = directory / "home"
        home.mkdir()
        kept = {name: value for name, value in os.environ.items() if "VIEWSTAMP" not in name}
        address = f"127.0.0.1:{self._ports[7400]}"
        path = f"{_stand_ins(directory)}:{self.tree}/.venv/bin:{os.environ['PATH']}"
        own = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "PYTHONPATH": str(self.tree)}
        own["PATH"] = path
        flags = f"UP_PORT={self._ports[7400]}"
        return {**kept, **own, "VIEWSTAMP_ADDRESS": address, "MAKEFLAGS": flags, "COLUMNS": "200"}

    def _with_ports(self, text: str) -> str:
        """Return a text in which free ports replace those that the page names."""
        if text.startswith(STAND_IN):
            return text  # The block names ports of pods.
        return with_ports(text, self._ports)


def with_ports(text: str, free: Mapping[int, int]) -> str:
    """Return a text in which blocks of ports that begin at `free` replace those of PORTS.

    All are replaced at once: a port that was put in may hold the digits of another.
    """
    chosen = {
        str(first + offset): str(free[first] + offset)
        for first, count in PORTS.items()
        for offset in range(count)
    }
    return re.sub("|".join(chosen), lambda match: chosen[match[0]], text)


def _stand_ins(directory: Path) -> Path:
    """Return a directory with stand-ins for programs that need more than one machine."""
    programs = directory / "stand-ins"
    programs.mkdir()
    kubectl = programs / STAND_IN
    kubectl.write_text('#!/bin/sh\nexec python -m tests.documentation.kubectl "$@"\n')
    kubectl.chmod(0o755)
    return programs


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _free_ports(count: int) -> int:
    """Return the first of so many consecutive loopback ports without a listener."""
    start = os.getpid() * BLOCKS_PER_PROCESS % len(PORTS_FROM)
    for position in range(len(PORTS_FROM)):
        first = PORTS_FROM[(start + position) % len(PORTS_FROM)]
        if first in _given:
            continue
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        _given.add(first)
        return first
    raise AssertionError("no free ports")


_given: set[int] = set()
