"""What coroutines run on in the processes of this project: uvloop, and gRPC's older poller.

Measurements led to both (ADR 16): a message of gRPC costs half as much, and takes half the time.
This module must not import gRPC, because gRPC reads its environment when it is imported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import uvloop

Result = TypeVar("Result")

EXPERIMENTS_VARIABLE: Final = "GRPC_EXPERIMENTS"
# Without these, gRPC passes no event from thread to thread before Python gets it.
CLASSIC_POLLER: Final = "-event_engine_client,-event_engine_listener"


def choose_classic_poller() -> None:
    """Have gRPC use its older poller, in this process and those it starts, unless told otherwise.

    This has an effect only before gRPC is imported.
    """
    os.environ.setdefault(EXPERIMENTS_VARIABLE, CLASSIC_POLLER)


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """Run the coroutine of a whole process, as `asyncio.run` does, and return its result."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
