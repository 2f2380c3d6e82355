"""Shell commands of the documentation: found in its pages, and run in a copy of the repository.

A block that begins with ```console has a command behind each `$ `, which goes on in the next line
after a backslash or behind a `>`, and below it lines of its output, in which `...` stands for
anything. A command that ends with `&` starts a cluster: the next one is run when that cluster is
ready. A block that begins with ```diff is a patch, which is applied.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.tidy.tree import ROOT

FENCE: Final = re.compile(r"^( *)```(\S*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# Languages that hold no shell commands; a block without a language is not allowed.
OTHER_LANGUAGES: Final = frozenset({"python", "proto", "text", "toml", "yaml", "json"})
CONSOLE: Final = "console"
PATCH: Final = "diff"
PROMPT: Final = "$ "
# What `viewstamp up` says once its cluster serves.
READY: Final = "stop: Ctrl-C"
READY_TIMEOUT_S: Final = 60
POLL_S: Final = 0.05
# Ports that the pages name, and how many follow on each: they may be taken where the tests run.
PORTS: Final = {7400: 3, 7500: 3}
PORTS_FROM: Final = range(20_000, 30_000, 10)
PIP_STAMPS: Final = ("runtime", "analytics", "dev")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a page: its line in the page, its text, and the output that the page shows."""

    page: str
    line: int
    text: str
    output: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.text}"


def blocks(page: str, text: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, language and content of each fenced block of a page."""
    for match in FENCE.finditer(text):
        content = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
        yield text.count("\n", 0, match.start()) + 1, match[2], content


def strange_blocks(page: str, text: str) -> list[str]:
    """Return a line per block whose language does not say whether it holds shell commands."""
    known = OTHER_LANGUAGES | {CONSOLE, PATCH}
    return [
        f"{page}:{line}: ```{language} is none of {', '.join(sorted(known))}"
        for line, language, _ in blocks(page, text)
        if language.split("=")[0] not in known
    ]


def commands(page: str, text: str) -> list[Command]:
    """Return the commands of a page in order. Raises ValueError for output without a command."""
    found: list[Command] = []
    for line, language, content in blocks(page, text):
        if language == CONSOLE:
            found += _commands_of_block(page, line, content)
        elif language == PATCH:
            text = f"git apply -C1 <<'PATCH'\n{content}PATCH"
            found.append(Command(page, line, text, ()))
    return found


def _commands_of_block(page: str, line: int, content: str) -> Iterator[Command]:
    """Yield the commands of one block, each with the output below it."""
    parts = re.split(r"^\$ ", content.replace("\\\n", "\\\0"), flags=re.MULTILINE)
    if parts[0]:
        raise ValueError(f"{page}:{line}: a console block begins with `{PROMPT}`, not {parts[0]!r}")
    for part in parts[1:]:
        first, *rest = part.splitlines()
        more = [each[2:] for each in rest if each.startswith(">")]
        output = tuple(each for each in rest if each and not each.startswith(">"))
        text = first.replace("\0", "\n").split("   #")[0].strip()
        yield Command(page, line, "\n".join([text, *more]), output)


class Shell:
    """A bash in a copy of the repository, which is killed with all that it started at the end."""

    def __init__(self, directory: Path) -> None:
        self.tree = directory / "tree"
        self._copy()
        self._background = directory / "background"
        self._log = directory / "shell"
        self._ports = {port: _free_ports(count) for port, count in PORTS.items()}
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=self.tree,
            env=self._environment(directory),
            stdin=subprocess.PIPE,
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: Command) -> str:
        """Run a command and return its output; an AssertionError if it fails."""
        text = self._with_ports(command.text)
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
        os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.wait()

    def _run_behind(self, command: Command, text: str) -> str:
        """Start a cluster, and return what it said once it is ready."""
        log = self._background
        # Bash opens it a moment later, and another command may have been behind before.
        log.write_text("")
        _, code = self._told(f"{text} >{log} 2>&1 &\n")
        assert code == 0, str(command)
        deadline = time.monotonic() + READY_TIMEOUT_S
        while READY not in log.read_text():
            assert time.monotonic() < deadline, f"{command}\nnot ready:\n{log.read_text()}"
            time.sleep(POLL_S)
        return log.read_text()

    def _told(self, text: str) -> tuple[str, int]:
        """Have bash run a text; return what was printed and the exit code."""
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
        path = f"{self.tree}/.venv/bin:{os.environ['PATH']}"
        own = {"HOME": str(home), "XDG_CONFIG_HOME": str(home), "PYTHONPATH": str(self.tree)}
        own["PATH"] = path
        flags = f"UP_PORT={self._ports[7400]}"
        return {**kept, **own, "VIEWSTAMP_ADDRESS": address, "MAKEFLAGS": flags, "COLUMNS": "200"}

    def _with_ports(self, text: str) -> str:
        """Return a text with free ports in the place of those that the page names."""
        for first, count in PORTS.items():
            for offset in range(count):
                text = text.replace(str(first + offset), str(self._ports[first] + offset))
        return text


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _free_ports(count: int) -> int:
    """Return the first of so many consecutive ports of loopback that nobody listens on."""
    start = os.getpid() % len(PORTS_FROM)
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
