"""`viewstamp login` and `logout`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import grpc.aio
import typer
from google.protobuf.message import Message

from viewstamp.api.users.v1 import users_service_pb2 as users_pb2
from viewstamp.cli.options import PasswordFile, secret
from viewstamp.cli.output import moment, print_json
from viewstamp.cli.session import Settings, guarded, settings_of
from viewstamp.cli.store import StoredToken, TokenStore
from viewstamp.client import Endpoint, unary

OF_TOKEN = "(personal access token)"


def login(
    context: typer.Context,
    username: Annotated[str, typer.Option(help="Who you are.")] = "root",
    password_file: PasswordFile = None,
    personal_access_token_file: Annotated[
        Path | None,
        typer.Option(help="Log in with the personal access token in this file.", metavar="FILE"),
    ] = None,
) -> None:
    """Log in and keep the access token for this address.

    The token goes into $XDG_CONFIG_HOME/viewstamp/tokens.json, which only you may read. After
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

    async def exchange() -> Any:
        for address in settings.addresses[:-1]:
            try:
                return await _ask(settings, address, request)
            except grpc.aio.AioRpcError:
                pass  # any of them can answer
        return await _ask(settings, settings.addresses[-1], request)

    response = guarded(settings, exchange)
    stored = StoredToken(response.access_token, username, response.expires_at)
    store = TokenStore()
    store.put(settings.address, stored)
    if settings.as_json:
        print_json(
            {
                "address": settings.address,
                "username": username,
                "user_id": response.user_id,
                "expires_at": response.expires_at,
                "file": str(store.path),
            }
        )
        return
    until = moment(response.expires_at)
    typer.echo(f"logged in at {settings.address} as {username} until {until} ({store.path})")


async def _ask(settings: Settings, address: str, request: Message) -> Any:
    async with Endpoint(address, settings.tls_ca).open() as channel:
        return await unary(channel, request, timeout_s=settings.connect_timeout_s)


def logout(context: typer.Context) -> None:
    """Forget the access token kept for this address; it stays valid until it expires."""
    settings = settings_of(context)
    was_there = TokenStore().remove(settings.address)
    if settings.as_json:
        print_json({"address": settings.address, "was_logged_in": was_there})
        return
    typer.echo(f"{'forgot the login' if was_there else 'no login is kept'} at {settings.address}")
