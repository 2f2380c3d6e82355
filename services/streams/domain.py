"""The streams domain as the runtime sees it."""

from __future__ import annotations

from typing import Final

from services.runtime.domain import Domain
from services.streams.broker_commands import silent
from services.streams.bulk import create_topics
from services.streams.changes import WATCHED
from services.streams.commands import COMMANDS
from services.streams.effects import EFFECTS
from services.streams.model import StreamsState
from services.streams.queries import QUERIES
from services.streams.resolve import resolve, resolve_grants
from services.streams.section import SECTION
from viewstamp.api.brokers.v1 import brokers_service_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.streams.v1 import streams_service_pb2

DOMAIN: Final = Domain(
    stage=routing_pb2.STAGE_STREAMS,
    files=(streams_service_pb2.DESCRIPTOR, brokers_service_pb2.DESCRIPTOR),
    new_state=StreamsState,
    commands=COMMANDS,
    queries=QUERIES,
    effects=EFFECTS,
    section=SECTION,
    # Nothing waits for a time of the log.
    proposals=lambda state: (),
    silent=silent,
    resolve=resolve,
    resolve_grants=resolve_grants,
    bulk={"CreateTopic": create_topics},
    watched=WATCHED,
)
