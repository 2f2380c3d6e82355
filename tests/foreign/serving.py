"""A server of all kinds of calls in a process of its own, on a transport by name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.coordinator.peers.certificates import Authority
from tests.tidy.tree import ROOT
from tests.viewstamp.wire.tls_ends import SERVER


@contextmanager
def serving(transport: str, directory: Path) -> Iterator[tuple[str, str]]:
    """Serve in a process of its own; give the addresses without and with TLS."""
    texts = Authority.create(directory / "authority").issue(SERVER)
    files = map(str, (texts.authority, texts.certificate, texts.key))
    command = [sys.executable, "-m", "tests.foreign.server", transport, *files]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        plain, encrypted = process.stdout.readline().split()
        try:
            yield plain, encrypted
        finally:
            process.kill()
