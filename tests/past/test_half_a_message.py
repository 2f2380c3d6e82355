"""The process of the past ends with its coordinator, whatever that was just saying."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from coordinator.history.messages import BeginState
from coordinator.history.process import LENGTH_BYTES, encode_message

MESSAGE = encode_message(BeginState(None))
END_TIMEOUT_S = 60


@pytest.mark.parametrize("sent", [0, LENGTH_BYTES, LENGTH_BYTES + 1, len(MESSAGE) - 1])
def test_half_a_message_is_no_failure(sent: int) -> None:
    """A coordinator that dies in the midst of a message leaves no error behind."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "past", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stderr=subprocess.PIPE,
        )
    with ours:
        ours.sendall(MESSAGE[:sent])
    _, errors = process.communicate(timeout=END_TIMEOUT_S)
    assert (process.returncode, errors) == (0, b"")
