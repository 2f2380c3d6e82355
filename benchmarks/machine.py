"""Measures the cost of the machine per command beyond its handler: prints one JSON object.

Method: spans of 1, 100 and 1000 CreateTopic commands run through a machine whose handler returns
fixed bytes, compared with decoding the same span and calling the handler directly. The best of
several rounds counts, so that other load on the computer has little effect.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final

from services.runtime.domain import Call, Domain
from services.runtime.machine import Machine
from services.runtime.section import Section
from viewstamp import framing, routing
from viewstamp.api.common.v1 import common_pb2
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_service_pb2
from viewstamp.limits import FEATURE_LEVEL_MAX
from viewstamp.machine.tables import Table, UndoLog

CREATE_TOPIC: Final = 210
SPANS: Final = (1, 100, 1000)
COMMANDS_PER_ROUND: Final = 20_000
ROUNDS: Final = 7
RESULT: Final = b"\x12\x02\x08\x07"


def new_state(undo: UndoLog) -> Table[int, str]:
    """Return a state of one table."""
    return Table(undo)


def nothing(state: Table[int, str], request: Any, call: Call) -> bytes:
    """Handle a command at no cost."""
    return RESULT


def one_put(state: Table[int, str], request: Any, call: Call) -> bytes:
    """Handle a command with the smallest possible change."""
    state.put(call.revision, "")
    return RESULT


def domain(handler: Callable[[Table[int, str], Any, Call], bytes]) -> Domain[Table[int, str]]:
    """Return a domain that claims CreateTopic alone."""
    return Domain(
        stage=routing_pb2.STAGE_STREAMS,
        files=[streams_service_pb2.DESCRIPTOR],
        new_state=new_state,
        commands={"CreateTopic": handler},
        queries={},
        effects={},
        section=Section(version=1, kinds=()),  # snapshots are not measured here
        proposals=lambda state: (),
    )


def span_of(count: int) -> bytes:
    """Return that many CreateTopic requests, framed."""
    request = streams_service_pb2.CreateTopicRequest(
        stream=common_pb2.Identifier(id=7), name="topic-of-some-length"
    )
    return framing.frame_all([request.SerializeToString()] * count)


def best_ns(run: Callable[[int], None], count: int) -> float:
    """Return the nanoseconds per command of the best round; `run` is given revisions."""
    best = float("inf")
    revision = 1
    for _ in range(ROUNDS):
        batches = COMMANDS_PER_ROUND // count
        start = time.perf_counter_ns()
        for _ in range(batches):
            run(revision)
            revision += count
        best = min(best, (time.perf_counter_ns() - start) / (batches * count))
    return best


def machine_ns(handler: Callable[[Table[int, str], Any, Call], bytes], count: int) -> float:
    """Measure whole batches, from encoded request to encoded reply as the shell sees them."""
    machine = Machine(domain(handler))
    items = span_of(count)

    def run(revision: int) -> None:
        batch = pb.Batch(
            sequence=machine.sequence + 1, op=revision, feature_level=FEATURE_LEVEL_MAX
        )
        command = batch.items.add().command
        command.code, command.first_revision, command.count = CREATE_TOPIC, revision, count
        command.items = items
        machine.apply(batch)

    return best_ns(run, count)


def bare_ns(handler: Callable[[Table[int, str], Any, Call], bytes], count: int) -> float:
    """Measure decoding and the handler alone."""
    batch_class = routing.batch_class(streams_service_pb2.CreateTopicRequest.DESCRIPTOR)
    undo = UndoLog()
    state = new_state(undo)
    items = span_of(count)

    def run(revision: int) -> None:
        call = Call(revision, 0, 0, 0, 0, 1)
        for request in batch_class.FromString(items).items:
            call.revision = revision
            handler(state, request, call)
        undo.entries.clear()

    return best_ns(run, count)


def main() -> None:
    """Measure and print."""
    report = {}
    for handler in (nothing, one_put):
        for count in SPANS:
            whole, bare = machine_ns(handler, count), bare_ns(handler, count)
            report[f"{handler.__name__}_span_{count}"] = {
                "machine_ns": round(whole),
                "bare_ns": round(bare),
                "overhead_ns": round(whole - bare),
            }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
