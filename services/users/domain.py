"""The users domain, put together."""

from __future__ import annotations

from collections.abc import Callable

from services.runtime.domain import Domain
from services.users.changes import WATCHED
from services.users.commands import COMMANDS
from services.users.effects import EFFECTS
from services.users.login import login_queries
from services.users.model import UsersState
from services.users.normalize import normalizers, suffixes
from services.users.queries import QUERIES
from services.users.section import SECTION
from services.users.shell import build_shell
from services.users.token_commands import expiry_proposals
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.users.v1 import users_service_pb2


def build_domain(cluster_key: bytes, clock_us: Callable[[], int]) -> Domain[UsersState]:
    """Return the domain. Raises ValueError for a cluster key of a wrong length.

    `clock_us` is the wall clock in microseconds since 1970; logins alone look at it.
    """
    shell = build_shell(cluster_key, clock_us)
    return Domain(
        stage=routing_pb2.STAGE_USERS,
        files=[users_service_pb2.DESCRIPTOR],
        new_state=UsersState,
        commands=COMMANDS,
        queries={**QUERIES, **login_queries(shell)},
        effects=EFFECTS,
        section=SECTION,
        proposals=expiry_proposals,
        normalizers=normalizers(shell),
        suffixes=suffixes(shell),
        watched=WATCHED,
        opened=shell.opened,
    )
