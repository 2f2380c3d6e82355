"""Tables: framed and folded on a terminal, plain in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from tests.viewstamp.cli.conftest import CommandLine

COLUMNS = 80


def on_terminal(viewstamp: CommandLine, *arguments: str) -> list[str]:
    """Return the lines that a command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    variables = {"XDG_CONFIG_HOME": str(viewstamp.home), "VIEWSTAMP_ADDRESS": viewstamp.address}
    with subprocess.Popen(
        [sys.executable, "-m", "viewstamp.cli", *arguments],
        stdout=theirs,
        env={**os.environ, **variables, "NO_COLOR": "1", "TERM": "dumb"},
    ) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                written += os.read(ours, 65_536)
            except OSError:  # the terminal has no writer any more
                break
    os.close(ours)
    assert process.returncode == 0
    return written.decode().splitlines()


def test_status_fits_a_terminal(viewstamp: CommandLine) -> None:
    """The columns of replicas stand side by side on 80 columns, and none is folded."""
    lines = on_terminal(viewstamp, "status")
    assert max(map(len, lines)) <= COLUMNS
    (header,) = [line.split() for line in lines if "role" in line.split()]
    assert header == ["replica", "id", "role", "status", "commit", "lag", "link", "address"]
    assert "heard_ms" in viewstamp("status", "--wide").out


@pytest.mark.parametrize("name", ["a" * 200, "pipe | and\ttab"])
def test_a_table_in_a_pipe_is_plain(viewstamp: CommandLine, name: str) -> None:
    """A row is one line, however long, under the keys of JSON, and has no frame."""
    viewstamp("stream", "create", name)
    header, row = viewstamp("stream", "list").out.splitlines()
    assert header.split() == ["id", "name", "topics_count", "created_at", "modified_revision"]
    assert row.startswith("1 ") and name in row
    assert not set(header + row) & set("│┃─━")
