"""What coroutines run on in the processes of this project: uvloop, and gRPC's older poller.

Both were chosen by measurement (ADR 16): a message of gRPC costs half as much, and takes half
the time.
This module must not import gRPC, which reads its environment when it is imported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import uvloop

Result = TypeVar("Result")

EXPERIMENTS_VARIABLE: Final = "GRPC_EXPERIMENTS"
# Without these gRPC hands no event from thread to thread before Python hears of it.
CLASSIC_POLLER: Final = "-event_engine_client,-event_engine_listener"


def choose_classic_poller() -> None:
    """Have gRPC use its older poller, in this process and those it starts, unless told otherwise.

    It counts only if gRPC was not imported yet.
    """
    os.environ.setdefault(EXPERIMENTS_VARIABLE, CLASSIC_POLLER)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run the coroutine of a whole process, as `asyncio.run` does, and return its result."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
