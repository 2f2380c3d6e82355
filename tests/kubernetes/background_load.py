"""A load from the client's pod that goes on while something happens to the cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from testkit.kubernetes.layout import program
from tests.kubernetes.deployment import CLIENT_HOME, ROLLOUT_TIMEOUT_S, ClientPod

_PROGRAM: Final = (Path(__file__).parent / "load.py").read_text()


class BackgroundLoad:
    """What a load told of itself, once it has ended."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self.summary: dict[str, Any] = {}

    def assert_nothing_lost(self) -> None:
        """Every stream that was acknowledged is there, and some were created."""
        assert self.summary["missing"] == []
        assert self.summary["created"] > 0


@contextmanager
def load(client: ClientPod, password: str, prefix: str) -> Iterator[BackgroundLoad]:
    """Create streams during the block, and say after it what became of them."""
    stop = f"{CLIENT_HOME}/stop-{prefix}"
    kubectl = (program("kubectl"), "--kubeconfig", str(client.kubernetes.kubeconfig))
    words = client.command("python", "-c", _PROGRAM, prefix, password, stop)
    result = BackgroundLoad()
    with subprocess.Popen([*kubectl, *words], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["began"]
            yield result
            client.python(f"open({stop!r}, 'w').close()")
            said, _ = process.communicate(timeout=ROLLOUT_TIMEOUT_S)
            assert process.returncode == 0, said
            result.summary = json.loads(said.splitlines()[-1])
            print(f"load {prefix}: {result.summary}")
        finally:
            process.kill()
