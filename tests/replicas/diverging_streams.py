"""The streams service with a defect: `python -m tests.replicas.diverging_streams`.

After a stream is renamed to `sour`, the answer is right, but the state differs from that of other
replicas. The answer to the creation of a stream `bitter` has another id; the state is right.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Final

from services.runtime.domain import Call
from services.runtime.process import run
from services.streams.domain import DOMAIN

SOUR: Final = "sour"
BITTER: Final = "bitter"
PROGRAM: Final = "streams"
MODULE: Final = "services.streams"


def update_stream(state: Any, request: Any, call: Call) -> Any:
    """Rename a stream, and count a purge that did not happen."""
    answer = DOMAIN.commands["UpdateStream"](state, request, call)
    if request.name == SOUR:
        stream = state.streams.rows[state.stream_ids.rows[SOUR]]
        wrong = stream._replace(purge_generation=stream.purge_generation + 1)
        state.streams.put(stream.id, wrong)
    return answer


def create_stream(state: Any, request: Any, call: Call) -> Any:
    """Create a stream, and answer with the id of another one."""
    answer = DOMAIN.commands["CreateStream"](state, request, call)
    if request.name == BITTER:
        assert isinstance(answer, bytes), "the service encodes this answer by itself"
        return answer[:-1] + bytes([answer[-1] ^ 1])
    return answer


DEFECTS: Final = {"UpdateStream": update_stream, "CreateStream": create_stream}
DIVERGING: Final = replace(DOMAIN, commands={**DOMAIN.commands, **DEFECTS})

if __name__ == "__main__":
    sys.exit(run("streams", lambda options: DIVERGING))
