"""The stages, in their own module so that every other one may name them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from viewstamp.limits import SECTION_SINCE_LEVEL


class Stage(IntEnum):
    """A machine as the mux sees it, in the order in which committed commands pass through them."""

    SESSIONS = 1
    USERS = 2
    STREAMS = 3
    CONSUMER_GROUPS = 4
    CATALOG = 5


# As a tuple, because iterating over an enumeration costs more than the work for a stage.
STAGES: Final = tuple(Stage)

# The stages that are services: they freeze at a cut when told.
SERVICE_STAGES: Final[tuple[Stage, ...]] = tuple(
    stage for stage in STAGES if stage not in (Stage.SESSIONS, Stage.CATALOG)
)


def cut_stages(feature_level: int) -> tuple[Stage, ...]:
    """Return the stages that a cut at a feature level freezes, ascending."""
    return tuple(stage for stage in STAGES if SECTION_SINCE_LEVEL.get(stage, 1) <= feature_level)


def cut_services(feature_level: int) -> tuple[Stage, ...]:
    """Return the services that a cut at a feature level freezes."""
    return tuple(stage for stage in cut_stages(feature_level) if stage in SERVICE_STAGES)
