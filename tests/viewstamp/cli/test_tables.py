"""Tables: framed and folded on a terminal, plain in a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence

import pytest

from tests.viewstamp.cli.conftest import CommandLine

COLUMNS = 80


def on_terminal(viewstamp: CommandLine, *arguments: str) -> list[str]:
    """Return the lines that a command writes to a terminal of 80 columns."""
    variables = {"XDG_CONFIG_HOME": str(viewstamp.home), "VIEWSTAMP_ADDRESS": viewstamp.address}
    return program_on_terminal(("-m", "viewstamp.cli", *arguments), variables)


def program_on_terminal(arguments: Sequence[str], variables: Mapping[str, str]) -> list[str]:
    """Return the lines that Python writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with subprocess.Popen(
        [sys.executable, *arguments],
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


FIVE_REPLICAS = """
from viewstamp.api.cluster.v1 import cluster_service_pb2 as pb
from viewstamp.cli import cluster
names = [f"viewstamp-{each}.viewstamp-headless.viewstamp.svc:7400" for each in range(5)]
replicas = [
    pb.Replica(replica_id=each, role=pb.REPLICA_ROLE_STANDBY, status=pb.REPLICA_STATUS_VIEW_CHANGE,
               commit=10**10, lag=10**6, link="connecting", address=name)
    for each, name in enumerate(names)
]
cluster._show_status(pb.GetStatusResponse(replicas=replicas), digests=False, wide=False)
"""


def test_five_replicas_with_long_names_fit_a_terminal() -> None:
    """Each replica has a line for its state and one for its address, and no cell is folded."""
    lines = program_on_terminal(("-c", FIVE_REPLICAS), {})
    assert max(map(len, lines)) <= COLUMNS
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0].isdecimal()]
    assert [row[1:] for row in rows[:5]] == [
        ["standby", "view_change", "10000000000", "1000000"]
    ] * 5
    addresses = [f"viewstamp-{i}.viewstamp-headless.viewstamp.svc:7400" for i in range(5)]
    assert [row[2] for row in rows[5:]] == addresses


@pytest.mark.parametrize("name", ["a" * 200, "pipe | and\ttab"])
def test_a_table_in_a_pipe_is_plain(viewstamp: CommandLine, name: str) -> None:
    """A row is one line, however long, under the keys of JSON, and has no frame."""
    viewstamp("stream", "create", name)
    header, row = viewstamp("stream", "list").out.splitlines()
    assert header.split() == ["id", "name", "topics_count", "created_at", "modified_revision"]
    assert row.startswith("1 ") and name in row
    assert not set(header + row) & set("│┃─━")
