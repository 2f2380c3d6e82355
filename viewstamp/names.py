"""What a name may be, the same for every machine.

Pure: machines call it at log order, shells before it.
"""

from __future__ import annotations

import re
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# C0, DEL and C1: invisible in lists and logs, and terminals act on them.
CONTROL_CHARACTERS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_name(
    name: str, *, reason: Reason.ValueType, what: str, bytes_min: int, bytes_max: int
) -> None:
    """Raise Refusal with `reason` unless `name` is a valid name.

    Valid is UTF-8 of `bytes_min` to `bytes_max` bytes without control characters. `what` is how
    the message calls it, for example "stream name".
    """
    check_length(name, reason=reason, what=what, bytes_min=bytes_min, bytes_max=bytes_max)
    control = CONTROL_CHARACTERS.search(name)
    if control is not None:
        code_point, position = f"U+{ord(control.group()):04X}", control.start()
        raise Refusal(
            reason,
            f"The {what} has the control character {code_point} at position {position}; "
            "use a name without control characters (U+0000 to U+001F, U+007F to U+009F).",
            code_point=code_point,
            position=position,
        )


def check_length(
    text: str, *, reason: Reason.ValueType, what: str, bytes_min: int, bytes_max: int
) -> None:
    """Raise Refusal with `reason` unless `text` is UTF-8 of `bytes_min` to `bytes_max` bytes.

    The message does not repeat the text, so this serves for secrets too.
    """
    if text.isascii():
        length = len(text)
    else:
        length = _utf8_length(text, reason, what)
    if not bytes_min <= length <= bytes_max:
        raise Refusal(
            reason,
            f"The {what} has {length} bytes; it must have {bytes_min} to {bytes_max} bytes "
            "of UTF-8.",
            bytes=length,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
        )


def _utf8_length(text: str, reason: Reason.ValueType, what: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Refusal(
            reason,
            f"The {what} is not valid UTF-8 at position {error.start} (a lone surrogate); "
            "use characters that UTF-8 can encode.",
            position=error.start,
        ) from error
