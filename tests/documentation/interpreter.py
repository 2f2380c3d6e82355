"""Runs the Python blocks of one page in order and in one namespace, as a reader would.

A page that awaits tells its readers to use `python -m asyncio`. An `Interpreter` is such a Python
without a terminal: it compiles each block with `await` allowed at the top, and runs it.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any, Final, TextIO


class Interpreter:
    """A process that runs blocks; the output of blocks goes to a file."""

    def __init__(self, directory: Path, environment: dict[str, str], log: Path) -> None:
        self._log = log
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("a"),
            text=True,
            # Processes that a block started, such as Spark's Java, end with it.
            start_new_session=True,
        )

    def run(self, name: str, block: str) -> str:
        """Run a block and return what was printed; an AssertionError if it raises."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        before = self._log.stat().st_size
        self._process.stdin.write(json.dumps([name, block]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        said = self._log.read_bytes()[before:].decode()
        assert answer, f"{name}\nPython ended:\n{said}"
        failure = json.loads(answer)
        assert not failure, f"{name}\n{failure}"
        return said

    def close(self) -> None:
        """End the process and everything it started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


TOP_LEVEL_AWAIT: Final = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def serve(requests: TextIO, answers: TextIO) -> None:
    """Run each block that arrives; answer with its failure, which is empty for a success."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    loop = asyncio.new_event_loop()
    for line in requests:
        name, block = json.loads(line)
        answers.write(json.dumps(failure(loop, namespace, name, block)) + "\n")
        answers.flush()


def failure(
    loop: asyncio.AbstractEventLoop, namespace: dict[str, Any], name: str, block: str
) -> str:
    """Run one block and return the end of its traceback, or an empty text."""
    try:
        code = compile(block, name, "exec", flags=TOP_LEVEL_AWAIT, dont_inherit=True)
        if code.co_flags & inspect.CO_COROUTINE:
            loop.run_until_complete(eval(code, namespace))
        else:
            exec(code, namespace)
    except BaseException:
        return traceback.format_exc()
    finally:
        sys.stdout.flush()
    return ""


def main() -> None:
    """Send answers to the former standard output; blocks print to standard error."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    serve(sys.stdin, answers)


if __name__ == "__main__":
    main()
