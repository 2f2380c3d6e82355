"""How large the commands of a request may be, one by one."""

from __future__ import annotations

import pytest

from coordinator.gateway.command_sizes import check_commands
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.framing import frame_all
from viewstamp.limits import COMMAND_BYTES_MAX


def test_many_commands_may_be_larger_than_one() -> None:
    """Each command has a limit of its own: several of the largest fit into one request."""
    check_commands(frame_all([bytes(COMMAND_BYTES_MAX)] * 3))


def test_one_command_that_is_too_large_is_refused() -> None:
    """One byte more than a command may have is refused, also among others."""
    with pytest.raises(Refusal) as caught:
        check_commands(frame_all([b"a", bytes(COMMAND_BYTES_MAX + 1), b"b"]))
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
    assert caught.value.details["bytes"] == str(COMMAND_BYTES_MAX + 1)


def test_bytes_that_are_no_commands_are_bounded() -> None:
    """What cannot be taken apart counts as one command; a little of it is refused elsewhere."""
    check_commands(b"\xff" * 100)
    with pytest.raises(Refusal) as caught:
        check_commands(b"\xff" * (COMMAND_BYTES_MAX + 1))
    assert caught.value.reason == Reason.REASON_COMMAND_TOO_LARGE
