"""The event loop and gRPC's settings, each in its own process: gRPC reads settings only once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from viewstamp.event_loop import CLASSIC_POLLER, EXPERIMENTS_VARIABLE

SERVE = """
import asyncio, sys
import {package}
import grpc.aio

async def main():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await server.stop(None)
    return type(asyncio.get_running_loop()).__module__

from viewstamp import event_loop
print(event_loop.run(main()))
"""
UNKNOWN = "Unknown experiment"


def serve(package: str, **environment: str) -> tuple[str, str]:
    """Start a gRPC server in a new process; return its output, and gRPC's warnings."""
    inherited = {key: text for key, text in os.environ.items() if key != EXPERIMENTS_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", SERVE.format(package=package)],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("package", ["coordinator", "services"])
def test_the_settings_are_known_to_grpc(package: str) -> None:
    """uvloop runs, and this version of gRPC still knows the experiments that are switched off."""
    printed, complaints = serve(package)
    assert printed == "uvloop"
    assert UNKNOWN not in complaints


def test_grpc_complains_of_unknown_experiments() -> None:
    """The test above would see it if an experiment were gone, as from a newer gRPC."""
    _, complaints = serve("coordinator", **{EXPERIMENTS_VARIABLE: f"{CLASSIC_POLLER},-no_such_one"})
    assert UNKNOWN in complaints


def test_settings_of_the_operator_stay() -> None:
    """An operator's setting of the variable is kept."""
    code = f"import os, coordinator; print(os.environ['{EXPERIMENTS_VARIABLE}'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {EXPERIMENTS_VARIABLE: "-tcp_frame_size_tuning"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "-tcp_frame_size_tuning"


@pytest.mark.parametrize("module", ["coordinator.app.main", "services.runtime.process"])
def test_the_choice_comes_before_grpc(module: str) -> None:
    """The variable is set when gRPC is imported: afterwards would be too late."""
    code = (
        "import builtins, os, sys\n"
        "class Watch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'grpc': print(os.environ.get('{EXPERIMENTS_VARIABLE}'))\n"
        "sys.meta_path.insert(0, Watch())\n"
        f"import {module}"
    )
    inherited = {key: text for key, text in os.environ.items() if key != EXPERIMENTS_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[0] == CLASSIC_POLLER
