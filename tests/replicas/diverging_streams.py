"""The streams service with a defect: `python -m tests.replicas.diverging_streams`.

After a stream is renamed to `sour`, the answer is right, but the state differs from that of other
replicas.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, Final

from services.runtime.domain import Call
from services.runtime.process import run
from services.streams.domain import DOMAIN

SOUR: Final = "sour"
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


DIVERGING: Final = replace(DOMAIN, commands={**DOMAIN.commands, "UpdateStream": update_stream})

if __name__ == "__main__":
    sys.exit(run("streams", lambda options: DIVERGING))
