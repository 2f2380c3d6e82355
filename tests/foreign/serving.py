"""A server of all kinds of calls in a process of its own, by its command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.coordinator.peers.certificates import Authority
from tests.tidy.tree import ROOT
from tests.viewstamp.wire.tls_ends import SERVER


def python_server(transport: str) -> tuple[str, ...]:
    """Return the command of our own server, on a transport by name."""
    return (sys.executable, "-m", "tests.foreign.server", transport)


@contextmanager
def serving(command: Sequence[str], directory: Path) -> Iterator[tuple[str, str]]:
    """Serve in a process of its own; give the addresses without and with TLS."""
    files = Authority.create(directory / "authority").issue(SERVER)
    paths = map(str, (files.authority, files.certificate, files.key))
    with subprocess.Popen(
        [*command, *paths], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        plain, encrypted = process.stdout.readline().split()
        try:
            yield plain, encrypted
        finally:
            process.kill()
