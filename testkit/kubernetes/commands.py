"""Programs that run to their end, and daemons that run until they are stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from testkit.kubernetes.layout import KubernetesError

COMMAND_TIMEOUT_S: Final = 600
STOP_TIMEOUT_S: Final = 10
# As much of a log as an error shows.
_LOG_TAIL_CHARACTERS: Final = 2000


def run(*words: str, stdin: str | None = None, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Run a program and return what it printed. Raises KubernetesError if it fails or hangs."""
    try:
        done = subprocess.run(
            words, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise KubernetesError(f"{' '.join(words)} did not end in {timeout_s} s") from error
    if done.returncode != 0:
        raise KubernetesError(
            f"{' '.join(words)} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
    return done.stdout


class Daemon:
    """A program that runs in the background, with its output in a file."""

    def __init__(
        self, log: Path, *words: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the program."""
        self._log = log
        self._name = log.stem
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                # Killed with its parent, so that none outlives a test that was killed.
                ("setpriv", "--pdeathsig", "KILL", "--", *words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise KubernetesError if the program has ended by itself."""
        code = self._process.poll()
        if code is not None:
            tail = self._log.read_text(errors="replace")[-_LOG_TAIL_CHARACTERS:]
            raise KubernetesError(f"{self._name} ended with {code}: {tail}")

    def stop(self) -> None:
        """End the program: with SIGTERM, and after STOP_TIMEOUT_S with SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
