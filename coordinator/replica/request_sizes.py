"""How large a request may be: what no prepare could hold is refused at once."""

from __future__ import annotations

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal


def check_request_size(command_count: int, size: int) -> None:
    """Raise Refusal COMMAND_TOO_LARGE for a request that no prepare can hold."""
    if size > limits.PREPARE_BODY_BYTES_MAX:
        raise Refusal(
            Reason.REASON_COMMAND_TOO_LARGE,
            f"the request has {size} bytes; at most {limits.PREPARE_BODY_BYTES_MAX} fit: split it",
            bytes=size,
            bytes_max=limits.PREPARE_BODY_BYTES_MAX,
        )
    if command_count > limits.REQUEST_COMMANDS_MAX:
        raise Refusal(
            Reason.REASON_COMMAND_TOO_LARGE,
            f"the request has {command_count} commands;"
            f" at most {limits.REQUEST_COMMANDS_MAX} are allowed: split it",
            commands=command_count,
            commands_max=limits.REQUEST_COMMANDS_MAX,
        )
