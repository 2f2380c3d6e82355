"""The effects of users on streams: the projection by which streams decides permissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from services.runtime.domain import Call, EffectHandler
from services.streams import grants
from services.streams.access import new_access
from services.streams.model import StreamsState
from viewstamp.api.domain.v1 import effects_pb2


def grants_changed(state: StreamsState, effect: effects_pb2.GrantsChanged, call: Call) -> None:
    """Replace the grants of a user; the first ones make the user known.

    Credentials of a new user begin at the revision of the creating command, which is this one.
    """
    access = state.access.rows.get(effect.user_id)
    if access is None:
        access = new_access(effect.user_id, call.revision)
    grants.put(state, access.with_permissions(effect.permissions))


def credentials_changed(
    state: StreamsState, effect: effects_pb2.CredentialsChanged, call: Call
) -> None:
    """Refuse older credentials of a user from now on; ignore a deleted user."""
    access = state.access.rows.get(effect.user_id)
    if access is not None:
        changed = access._replace(
            minimum_credential_revision=effect.minimum_credential_revision,
            minimum_token_revision=effect.minimum_token_revision,
        )
        grants.put(state, changed)


def user_deleted(state: StreamsState, effect: effects_pb2.UserDeleted, call: Call) -> None:
    """Forget a user."""
    if effect.user_id in state.access:
        grants.delete(state, effect.user_id)


def user_deactivated(state: StreamsState, effect: effects_pb2.UserDeactivated, call: Call) -> None:
    """Refuse all requests of a user."""
    _set_active(state, effect.user_id, False)


def user_activated(state: StreamsState, effect: effects_pb2.UserActivated, call: Call) -> None:
    """Let a user act again."""
    _set_active(state, effect.user_id, True)


EFFECTS: Final[Mapping[str, EffectHandler[StreamsState]]] = {
    "grants_changed": grants_changed,
    "credentials_changed": credentials_changed,
    "user_deleted": user_deleted,
    "user_deactivated": user_deactivated,
    "user_activated": user_activated,
}


def _set_active(state: StreamsState, user_id: int, active: bool) -> None:
    grants.put(state, state.access.rows[user_id]._replace(active=active))
