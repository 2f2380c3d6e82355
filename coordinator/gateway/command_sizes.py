"""How large one command may be: what a client holds itself to is held for every caller."""

from __future__ import annotations

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.framing import FramingError, unframe
from viewstamp.limits import COMMAND_BYTES_MAX


def check_command(size: int) -> None:
    """Raise Refusal COMMAND_TOO_LARGE for a command of so many bytes, if they are too many."""
    if size > COMMAND_BYTES_MAX:
        raise Refusal(
            Reason.REASON_COMMAND_TOO_LARGE,
            f"a command has {size} bytes; at most {COMMAND_BYTES_MAX} are allowed",
            bytes=size,
            bytes_max=COMMAND_BYTES_MAX,
        )


def check_commands(items: bytes) -> None:
    """Raise Refusal COMMAND_TOO_LARGE if one of these framed commands is too large.

    Bytes that are no commands are refused later. They count as one command here, so that they are
    bounded, too.
    """
    if len(items) <= COMMAND_BYTES_MAX:
        return  # so no command in it is larger
    try:
        largest = max(map(len, unframe(items)))
    except FramingError:
        largest = len(items)
    check_command(largest)
