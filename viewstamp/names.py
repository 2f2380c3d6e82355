"""What a name may be, the same for every machine.

Pure: machines call it at log order, shells before it.
"""

from __future__ import annotations

import re
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# Cases of the reasons for a name that is not valid.
CONTROL_CHARACTER: Final = "control_character"
LENGTH: Final = "length"
ENCODING: Final = "encoding"

# C0, DEL and C1 are invisible in lists and logs, and terminals act on them.
CONTROL_CHARACTERS: Final = re.compile("[\x00-\x1f\x7f-\x9f]")


def check_name(
    name: str, *, reason: Reason.ValueType, bytes_min: int, bytes_max: int, field: str = ""
) -> None:
    """Raise Refusal with `reason` unless `name` is a valid name.

    Valid is UTF-8 of `bytes_min` to `bytes_max` bytes without control characters. `field` names the
    field where several fields have the same reason.
    """
    check_length(name, reason=reason, bytes_min=bytes_min, bytes_max=bytes_max, field=field)
    control = CONTROL_CHARACTERS.search(name)
    if control is not None:
        code_point, position = f"U+{ord(control.group()):04X}", control.start()
        raise Refusal.of(
            reason, CONTROL_CHARACTER, code_point=code_point, position=position, **_named(field)
        )


def check_length(
    text: str, *, reason: Reason.ValueType, bytes_min: int, bytes_max: int, field: str = ""
) -> None:
    """Raise Refusal with `reason` unless `text` is UTF-8 of `bytes_min` to `bytes_max` bytes.

    The refusal does not repeat the text, so this serves for secrets too.
    """
    if text.isascii():
        length = len(text)
    else:
        length = _utf8_length(text, reason, field)
    if not bytes_min <= length <= bytes_max:
        raise Refusal.of(
            reason,
            LENGTH,
            bytes=length,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            **_named(field),
        )


def _named(field: str) -> dict[str, str]:
    return {"field": field} if field else {}


def _utf8_length(text: str, reason: Reason.ValueType, field: str) -> int:
    try:
        return len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise Refusal.of(reason, ENCODING, position=error.start, **_named(field)) from error
