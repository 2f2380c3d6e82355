"""The streams service with defects that end it: `python -m tests.replicas.deadly_streams`.

The creation of a stream `deadly` ends the process at once, as a defect of the interpreter would;
that of a stream `bottomless` overflows the stack.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any, Final

from services.runtime.domain import Call
from services.runtime.process import run
from services.streams.domain import DOMAIN

DEADLY: Final = "deadly"
BOTTOMLESS: Final = "bottomless"
EXIT_CODE: Final = 139  # the exit code by which a shell reports a segmentation fault
PROGRAM: Final = "streams"
MODULE: Final = "services.streams"


def create_stream(state: Any, request: Any, call: Call) -> Any:
    """Create a stream, unless its name ends the process in the middle of the change."""
    answer = DOMAIN.commands["CreateStream"](state, request, call)
    if request.name == DEADLY:
        os._exit(EXIT_CODE)
    if request.name == BOTTOMLESS:
        _fall(0)
    return answer


def _fall(depth: int) -> int:
    return _fall(depth + 1) + 1


ENDING: Final = replace(DOMAIN, commands={**DOMAIN.commands, "CreateStream": create_stream})

if __name__ == "__main__":
    sys.exit(run("streams", lambda options: ENDING))
