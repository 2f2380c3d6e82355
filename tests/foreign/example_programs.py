"""The example clients in other languages: built as their pages say, and run."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.foreign.languages import check_tools, run
from tests.tidy.tree import ROOT

# An example that has not done for so long what is awaited hangs, or turns in a circle.
PATIENCE_S: Final = 60.0
BUILD_COMMAND: Final = re.compile(r"^\$ (?P<command>.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ExampleLanguage:
    """A language that an example is written in, and what its page has users install and run."""

    name: str
    tools: tuple[str, ...]
    command: tuple[str, ...]

    @property
    def directory(self) -> Path:
        """Where the example is."""
        return ROOT / "examples" / self.name

    @property
    def build_commands(self) -> list[str]:
        """The commands in the section "Build" of its page."""
        page = (self.directory / "README.md").read_text()
        section = page.partition("## Build")[2].partition("\n## ")[0]
        return BUILD_COMMAND.findall(section)

    def built_in(self, directory: Path) -> BuiltExample:
        """Build a copy of the example beside a copy of the protos. Raises AssertionError."""
        check_tools(self.tools, self.name)
        copy = directory / "examples" / self.name
        tracked = run(("git", "ls-files", "-z", "-co", "--exclude-standard"), self.directory)
        for name in filter(None, tracked.split("\0")):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(self.directory / name, copy / name)
        shutil.copytree(ROOT / "protos", directory / "protos")
        # `buf` is among the tools of this project's environment.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        assert self.build_commands, f"examples/{self.name}/README.md says not how to build it"
        for command in self.build_commands:
            run(("bash", "-c", command), copy, {"PATH": path})
        return BuiltExample(copy, self.command)


@dataclass(frozen=True, slots=True)
class BuiltExample:
    """An example that can be run."""

    directory: Path
    command: tuple[str, ...]

    @asynccontextmanager
    async def running(self, *arguments: str) -> AsyncIterator[ExampleProcess]:
        """Run it in the block, and end it behind the block."""
        process = await asyncio.create_subprocess_exec(
            *self.command, *arguments, cwd=self.directory, stdin=PIPE, stdout=PIPE, stderr=PIPE
        )
        try:
            yield ExampleProcess(process)
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def told(self, *arguments: str) -> list[dict[str, Any]]:
        """Run it to its end, and return what it told. Raises AssertionError if it failed."""
        async with self.running(*arguments) as process:
            return await process.finished()


class ExampleProcess:
    """An example that runs: what it has told so far, a JSON object on each line."""

    def __init__(self, process: Process) -> None:
        self.told: list[dict[str, Any]] = []
        self._process = process

    def feed(self, lines: Iterable[str]) -> None:
        """Write lines to its input."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Read until something holds for what it told.

        Raises AssertionError if it ends before, TimeoutError.
        """
        async with self._patience():
            while not is_reached():
                assert await self._reads_line(), await self._failure()

    async def finished(self) -> list[dict[str, Any]]:
        """End its input, and return what it told.

        Raises AssertionError if it failed, TimeoutError.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        async with self._patience():
            while await self._reads_line():
                pass
            failure = await self._failure()
        assert self._process.returncode == 0, failure
        return self.told

    async def refused(self) -> str:
        """Return what it said when it failed.

        Raises AssertionError if it did not fail, TimeoutError.
        """
        async with self._patience():
            failure = await self._failure()
        assert self._process.returncode == 1, failure
        return failure

    async def _reads_line(self) -> bool:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if line:
            self.told.append(json.loads(line))
        return bool(line)

    async def _failure(self) -> str:
        assert self._process.stderr is not None
        failure = (await self._process.stderr.read()).decode()
        await self._process.wait()
        return f"exit code {self._process.returncode}: {failure}; it told {self.told[-3:]}"

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                yield
        except TimeoutError as error:
            error.add_note(f"the example told last: {self.told[-3:]}")
            raise


EXAMPLES: Final = (
    ExampleLanguage("go", ("go",), ("./built/example",)),
    ExampleLanguage("typescript", ("node", "npm"), ("node", "built/src/main.js")),
    ExampleLanguage("java", ("mvn", "java"), ("java", "-jar", "target/example.jar")),
)
