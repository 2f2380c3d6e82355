"""A Spark standalone cluster on loopback: a master and two workers as processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import pyspark

HOST: Final = "127.0.0.1"
SPARK_HOME: Final = Path(pyspark.__file__).parent
WORKERS: Final = 2
POLL_S: Final = 0.05
DEADLINE_S: Final = 300
REQUEST_S: Final = 10

Found = TypeVar("Found")


@dataclass
class Worker:
    """A worker: its process, and the address at which it lists its executors."""

    process: subprocess.Popen[bytes]
    ui: str

    def executors(self) -> list[str]:
        """Return the ids of the executors that it runs."""
        return [str(one["id"]) for one in get(f"{self.ui}/json/")["executors"]]

    def kill(self) -> None:
        """Kill the worker and the executors that it started, as a power failure would."""
        children = children_of(self.process.pid)
        for pid in (self.process.pid, *children):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class SparkCluster:
    """The addresses of the master, the workers, and a directory for logs."""

    directory: Path
    master: str
    ui: str
    workers: list[Worker] = field(default_factory=list)


@contextlib.contextmanager
def cluster(directory: Path) -> Iterator[SparkCluster]:
    """Yield a running cluster; its processes end with the context."""
    with contextlib.ExitStack() as stack:
        port, ui = free_port(), free_port()
        start(directory, stack, "master", "Master", "--port", str(port), "--webui-port", str(ui))
        made = SparkCluster(directory, f"spark://{HOST}:{port}", f"http://{HOST}:{ui}")
        until("the master answers", lambda: alive(made) == 0)
        for number in range(WORKERS):
            made.workers.append(add_worker(made, stack, number))
        until("the workers are known", lambda: alive(made) == WORKERS)
        yield made


def add_worker(made: SparkCluster, stack: contextlib.ExitStack, number: int) -> Worker:
    """Start a worker of one core."""
    ui = free_port()
    size = ("--cores", "1", "--memory", "1g")
    place = ("--work-dir", str(made.directory / f"work-{number}"), "--webui-port", str(ui))
    name = f"worker-{number}"
    process = start(made.directory, stack, name, "worker.Worker", *size, *place, made.master)
    return Worker(process, f"http://{HOST}:{ui}")


def start(
    directory: Path, stack: contextlib.ExitStack, name: str, program: str, *arguments: str
) -> subprocess.Popen[bytes]:
    """Start a process of Spark; the stack ends it, and its children with it."""
    command = [
        str(SPARK_HOME / "bin" / "spark-class"),
        f"org.apache.spark.deploy.{'master.' if program == 'Master' else ''}{program}",
        *("--host", HOST),
        *arguments,
    ]
    log = stack.enter_context((directory / f"{name}.log").open("wb"))
    process = subprocess.Popen(command, stdout=log, stderr=log, env=environment(directory))
    stack.callback(end, process)
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, if they are there still."""
    children = children_of(process.pid)
    process.kill()
    process.wait()
    for pid in children:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def environment(directory: Path) -> dict[str, str]:
    """Return the environment of every process: loopback alone, files in the directory.

    The setting that makes this checkout importable in the tests' own session is left out.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_DAEMON_MEMORY": "256m",
    }


def bare_interpreter(directory: Path) -> Path:
    """Return an interpreter with third-party packages and without ours.

    An editable install is a `.pth` file, which `-S` ignores.
    """
    path = directory / "python-bare"
    packages = os.pathsep.join(entry for entry in sys.path if entry.endswith("-packages"))
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="{packages}:$PYTHONPATH" exec "{sys.executable}" -S "$@"\n'
    )
    path.chmod(0o755)
    return path


def alive(made: SparkCluster) -> int:
    """Return how many workers the master counts as alive."""
    return int(get(f"{made.ui}/json/")["aliveworkers"])


def get(address: str) -> Any:
    """Return the content of a page of JSON. Raises OSError while nobody answers."""
    with urllib.request.urlopen(address, timeout=REQUEST_S) as answer:
        return json.load(answer)


def until(what: str, holds: Callable[[], Found | None]) -> Found:
    """Ask until the answer is true, and return it; a failure or bad JSON counts as false."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if found := holds():
                return found
        time.sleep(POLL_S)
    raise AssertionError(f"within {DEADLINE_S} s it did not become true that {what}")


def children_of(parent: int) -> list[int]:
    """Return the children of a process that still run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The state and the parent follow the name, which is in brackets and may hold any text.
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])
