"""The domain as the shell takes it."""

from __future__ import annotations

from typing import Final

from services.consumer_groups.changed_places import take_notices
from services.consumer_groups.changes import WATCHED
from services.consumer_groups.commands import COMMANDS
from services.consumer_groups.effects import EFFECTS
from services.consumer_groups.model import GroupsState
from services.consumer_groups.proposals import proposals, silent
from services.consumer_groups.queries import QUERIES
from services.consumer_groups.section import SECTION
from services.runtime.domain import Domain
from viewstamp.api.consumer_groups.v1 import consumer_groups_service_pb2
from viewstamp.api.routing.v1 import routing_pb2

DOMAIN: Final[Domain[GroupsState]] = Domain(
    stage=routing_pb2.STAGE_CONSUMER_GROUPS,
    files=[consumer_groups_service_pb2.DESCRIPTOR],
    new_state=GroupsState,
    commands=COMMANDS,
    queries=QUERIES,
    effects=EFFECTS,
    section=SECTION,
    proposals=proposals,
    silent=silent,
    take_notices=take_notices,
    watched=WATCHED,
)
