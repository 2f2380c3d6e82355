"""`viewstamp login` and `logout`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from google.protobuf.message import Message

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.cli.options import PasswordFile, secret
from viewstamp.cli.output import moment, printed, timestamp
from viewstamp.cli.session import as_logged_in, guarded
from viewstamp.cli.settings import Settings, fail, settings_of
from viewstamp.cli.store import StoredToken, TokenStore
from viewstamp.client.transport import Endpoints, ask
from viewstamp.errors import Refusal

OF_TOKEN = "(personal access token)"


def login(
    context: typer.Context,
    username: Annotated[str, typer.Option(help="The name of your user.")] = "root",
    password_file: PasswordFile = None,
    personal_access_token_file: Annotated[
        Path | None,
        typer.Option(help="Log in with the personal access token in this file.", metavar="FILE"),
    ] = None,
) -> None:
    """Log in and keep the access token for this cluster.

    Later commands use it at each of the given addresses, alone or in a list. It is kept with the
    authority of --tls-ca in $XDG_CONFIG_HOME/viewstamp/tokens.json, which only you may read. After
    `viewstamp up`, root's password is in the file `root_password` of the data directory.
    """
    settings = settings_of(context)
    request: Message
    if personal_access_token_file is not None:
        username = OF_TOKEN
        token = secret(settings, personal_access_token_file, "Personal access token")
        request = users_pb2.LoginWithTokenRequest(token=token)
    else:
        password = secret(settings, password_file, f"Password of {username}")
        request = users_pb2.LoginRequest(username=username, password=password)

    response = guarded(settings, lambda: _ask(settings, request))
    tls_ca = str(settings.tls_ca.resolve()) if settings.tls_ca is not None else None
    stored = StoredToken(response.access_token, username, response.expires_at, tls_ca)
    store, cluster = TokenStore(), response.header.cluster_id.hex()
    try:
        store.put(settings.addresses, cluster, stored)
    except ValueError as error:
        fail(settings, "CANNOT_KEEP", str(error))
    values = {
        "address": settings.address,
        "cluster": cluster,
        "username": username,
        "user_id": response.user_id,
        "expires_at": timestamp(response.expires_at),
        "file": str(store.path),
    }
    if not printed(settings, values):
        until = moment(response.expires_at)
        typer.echo(f"logged in at {settings.address} as {username} until {until} ({store.path})")


async def _ask(settings: Settings, request: Message, access_token: str | None = None) -> Any:
    endpoints = Endpoints(settings.addresses, settings.tls_ca)
    timeout_s = settings.connect_timeout_s
    return await ask(endpoints, request, access_token=access_token, timeout_s=timeout_s)


def logout(
    context: typer.Context,
    local: Annotated[
        bool,
        typer.Option("--local", help="Only delete the login from this machine; it stays valid."),
    ] = False,
) -> None:
    """End the access token kept for this cluster, and forget it.

    This also ends all access tokens that were got in the same way: with the password, or with
    personal access tokens.
    """
    settings = settings_of(context)
    store = TokenStore()
    try:
        stored = store.get(settings.addresses)
    except ValueError as error:
        fail(settings, "NOT_LOGGED_IN", str(error))
    # Remove it first, so that it is gone from here whatever the cluster answers.
    was_there = store.remove(settings.addresses)
    is_ended = stored is not None and not local and _end(as_logged_in(settings, stored), stored)
    values = {"address": settings.address, "was_logged_in": was_there, "ended": is_ended}
    if not printed(settings, values):
        did = "ended and forgot the login" if is_ended else "forgot the login"
        typer.echo(f"{did if was_there else 'no login is kept'} at {settings.address}")


def _end(settings: Settings, stored: StoredToken) -> bool:
    """Have the cluster end the access token of a login; return False if it was over already."""

    async def ended() -> bool:
        try:
            await _ask(settings, users_pb2.LogoutRequest(), stored.access_token)
        except Refusal as refusal:
            if refusal.reason == Reason.REASON_UNAUTHENTICATED:
                return False
            raise
        return True

    return guarded(settings, ended)
