"""Logs a user in by the gateway, with its throttles and its audit log, and begins a session."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final

from google.protobuf.message import Message

from coordinator.console.console_client import ConsoleClient, HandlerOf
from coordinator.console.console_sessions import ConsoleSession
from coordinator.console.http_messages import HttpRefused, HttpRequest
from viewstamp.api.users.v1 import users_service_pb2 as users_api
from viewstamp.client.identifiers import identifier
from viewstamp.errors import Refusal

_WANTED: Final = (
    'send {"username": "...", "password": "..."}, or {"token": "..."} with a personal access token'
)


async def logged_in(handler_of: HandlerOf, request: HttpRequest) -> ConsoleSession:
    """Return a new session for the credentials in a request. Raises HttpRefused, Refusal."""
    login = _login_request(request.body)
    response = await ConsoleClient(handler_of, request.peer).call(login)
    token, user_id = response.access_token, response.user_id
    username = await _name_of(ConsoleClient(handler_of, request.peer, token), user_id)
    return ConsoleSession(user_id, username, token, response.expires_at)


async def _name_of(client: ConsoleClient, user_id: int) -> str:
    """Return the user's name, which every user may read; the id while this replica lags behind."""
    try:
        answer = await client.call(users_api.GetUserRequest(user=identifier(user_id)))
    except Refusal:
        return f"user {user_id}"
    return str(answer.user.username)


def _login_request(body: bytes) -> Message:
    """Return the login that a body asks for. Raises HttpRefused."""
    fields = _fields(body)
    if fields.keys() == {"token"}:
        return users_api.LoginWithTokenRequest(token=fields["token"])
    if fields.keys() == {"username", "password"}:
        return users_api.LoginRequest(username=fields["username"], password=fields["password"])
    raise HttpRefused(HTTPStatus.BAD_REQUEST, _WANTED)


def _fields(body: bytes) -> dict[str, str]:
    try:
        found: Any = json.loads(body)
        if isinstance(found, dict) and all(_is_text(value) for value in found.values()):
            return found
    except (ValueError, RecursionError):
        pass  # refused below, without repeating what may be a password
    raise HttpRefused(HTTPStatus.BAD_REQUEST, _WANTED)


def _is_text(value: Any) -> bool:
    """Whether a value is text that a message can hold: JSON may have half a character."""
    return isinstance(value, str) and not any("\ud800" <= each <= "\udfff" for each in value)
