"""The commands that end what credentials were issued for: access tokens and sessions.

An access token is refused once its stamp is below its user's minimum. A change of the password or
the status raises the minimum for all tokens, the deletion of a personal access token only for those
issued for such tokens. So a few numbers tell what has ended, however many tokens there were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from services.runtime.domain import Call, CommandHandler
from services.users.access import authenticate, check_root, whose
from services.users.model import User, UsersState
from viewstamp import limits
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.routing.v1 import routing_pb2
from viewstamp.api.users.v1 import users_service_pb2

TO_CREDENTIALS: Final[tuple[int, ...]] = (routing_pb2.STAGE_SESSIONS, routing_pb2.STAGE_STREAMS)
TO_MEMBERSHIPS: Final[tuple[int, ...]] = (
    routing_pb2.STAGE_SESSIONS,
    routing_pb2.STAGE_CONSUMER_GROUPS,
)


def logout(
    state: UsersState, request: users_service_pb2.LogoutRequest, call: Call
) -> users_service_pb2.LogoutResponse:
    """End the access tokens that were issued in the same way as the caller's."""
    caller = authenticate(state, call)
    if call.credential_revision & limits.TOKEN_STAMP:
        end_minted(state, caller, call)
    else:
        changed = replace(caller, credential_revision=call.revision)
        state.replace_user(changed)
        tell_credentials(changed, call, TO_CREDENTIALS)
    return users_service_pb2.LogoutResponse()


def end_user_sessions(
    state: UsersState, request: users_service_pb2.EndUserSessionsRequest, call: Call
) -> users_service_pb2.EndUserSessionsResponse:
    """End one session of a user, or all."""
    caller = authenticate(state, call)
    user = whose(state, request, caller)
    check_root(caller, user)
    session_id = request.session_id if request.HasField("session_id") else None
    tell_sessions_ended(user.id, session_id, call, kept_session_id=call.session_id)
    return users_service_pb2.EndUserSessionsResponse()


ENDING_COMMANDS: Final[Mapping[str, CommandHandler[UsersState]]] = {
    "Logout": logout,
    "EndUserSessions": end_user_sessions,
}


def end_minted(state: UsersState, user: User, call: Call) -> None:
    """Refuse from now on every access token issued for a personal access token of the user."""
    changed = replace(user, minimum_token_revision=call.revision)
    state.replace_user(changed)
    tell_credentials(changed, call, TO_CREDENTIALS)


def tell_credentials(user: User, call: Call, to: tuple[int, ...]) -> None:
    """Tell other stages the minimums of a user."""
    changed = effects_pb2.CredentialsChanged(
        user_id=user.id,
        minimum_credential_revision=user.credential_revision,
        minimum_token_revision=user.minimum_token_revision,
    )
    call.emit(to, effects_pb2.EffectPayload(credentials_changed=changed))


def tell_sessions_ended(
    user_id: int, session_id: int | None, call: Call, kept_session_id: int = 0
) -> None:
    """Tell the stages with sessions that one of the user's, or all, have ended.

    Credentials must not outlive the session that carries a command: a later command of its request
    could join a group for an ended session. So that session is kept where they stay in force.
    """
    ended = effects_pb2.UserSessionsEnded(
        user_id=user_id, session_id=session_id, kept_session_id=kept_session_id
    )
    call.emit(TO_MEMBERSHIPS, effects_pb2.EffectPayload(user_sessions_ended=ended))
