"""The stages, in a module of their own so that every other one may name them."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Stage(IntEnum):
    """A machine as the mux sees it, in the order in which committed commands pass through them."""

    SESSIONS = 1
    USERS = 2
    STREAMS = 3
    CONSUMER_GROUPS = 4
    CATALOG = 5


# The same as a tuple: to iterate over an enumeration costs more than what is done for a stage.
STAGES: Final = tuple(Stage)

# The stages that are services: they freeze at a cut when they are told to.
SERVICE_STAGES: Final = (Stage.USERS, Stage.STREAMS, Stage.CONSUMER_GROUPS)
