"""How a command reaches the cluster: settings, identity, and one place where errors are told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import grpc.aio
import typer
from google.protobuf.message import Message

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.cli.settings import (
    EXIT_REFUSED,
    EXIT_UNANSWERED,
    EXIT_UNREACHABLE,
    Settings,
    fail,
    settings_of,
)
from viewstamp.cli.store import StoredToken, TokenStore
from viewstamp.client import (
    CannotConnect,
    Client,
    ClientError,
    Endpoint,
    OutcomeUnknown,
    connect,
    unary,
)
from viewstamp.client.transport import AccessTokenSource, Credentials
from viewstamp.errors import Refusal

T = TypeVar("T")

# What to do about a refusal; `{address}` is filled in.
NEXT_STEPS: Final = {
    Reason.REASON_UNAUTHENTICATED: "run `viewstamp login --address {address}`",
    Reason.REASON_INVALID_CREDENTIALS: "check username and password, and the address {address}",
    Reason.REASON_PERMISSION_DENIED: "ask an administrator for it (`viewstamp user permissions`); "
    "`viewstamp user whoami` shows what you have",
    Reason.REASON_USER_NOT_FOUND: "see `viewstamp user list`",
    Reason.REASON_STREAM_NOT_FOUND: "see `viewstamp stream list`",
    Reason.REASON_TOPIC_NOT_FOUND: "see `viewstamp topic list STREAM`",
    Reason.REASON_GROUP_NOT_FOUND: "see `viewstamp group list STREAM TOPIC`",
    Reason.REASON_TOKEN_NOT_FOUND: "see `viewstamp token list`, or `viewstamp token list "
    "--user USER`",
    Reason.REASON_SNAPSHOT_NOT_FOUND: "see `viewstamp snapshot list`",
    Reason.REASON_SNAPSHOT_IN_PROGRESS: "wait for it (`viewstamp snapshot list`), then try again",
    Reason.REASON_SNAPSHOT_IN_USE: "see `viewstamp snapshot list`; the last completed one stays",
    Reason.REASON_USER_EXISTS: "choose another name",
    Reason.REASON_STREAM_EXISTS: "choose another name",
    Reason.REASON_TOPIC_EXISTS: "choose another name",
    Reason.REASON_GROUP_EXISTS: "choose another name",
    Reason.REASON_TOKEN_EXISTS: "choose another name, or delete that token first",
    Reason.REASON_REVISION_MISMATCH: "look at the entity again, then repeat with its new "
    "modified_revision",
    Reason.REASON_SESSION_LIMIT: "close other clients, or wait 10 minutes for idle sessions to end",
    Reason.REASON_QUOTA_EXCEEDED: "wait a minute, then try again",
    Reason.REASON_FEATURE_LEVEL_UNSUPPORTED: "upgrade or start the replicas named, then look at "
    "`viewstamp cluster feature-level`",
    Reason.REASON_FEATURE_LEVEL_MISMATCH: "see `viewstamp cluster feature-level`",
    Reason.REASON_FEATURE_LEVEL_REQUIRED: "see whether it could be raised: `viewstamp cluster "
    "feature-level --raise --dry-run`",
    Reason.REASON_NO_SPACE: "free disk space on the cluster's machines (`viewstamp status`)",
    Reason.REASON_INTERNAL: "this is a defect: report it with the coordinator's log",
}


def run(context: typer.Context, action: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, do `action` with the client, and return what it returns.

    Tells errors and exits: 1 if the cluster refused, 2 if it could not be reached.
    """
    settings, identity = _logged_in(settings_of(context))

    async def connected() -> T:
        async with await connect(
            settings.addresses,
            **identity,
            tls_ca=settings.tls_ca,
            timeout_s=settings.timeout_s,
            connect_timeout_s=settings.connect_timeout_s,
            register_session=False,
        ) as client:
            return await action(client)

    return guarded(settings, connected)


def ask_here(context: typer.Context, request: Message) -> Any:
    """Have the first replica of the address answer out of what it holds itself, however old."""
    settings, credentials = _logged_in(settings_of(context))
    identity = AccessTokenSource(Credentials(**credentials))

    async def asked() -> Any:
        async with Endpoint(settings.addresses[0], settings.tls_ca).open() as channel:
            token = await identity.access_token(channel)
            return await unary(
                channel, request, access_token=token, timeout_s=settings.timeout_s, stale=True
            )

    return guarded(settings, asked)


def guarded(settings: Settings, action: Callable[[], Awaitable[T]]) -> T:
    """Run `action` in an event loop; tell what goes wrong, and exit."""

    async def awaited() -> T:
        return await action()

    try:
        return asyncio.run(awaited())
    except Refusal as refusal:
        fail(
            settings,
            refusal.name,
            refusal.message,
            NEXT_STEPS.get(refusal.reason, "").format(address=settings.address),
            exit_code=EXIT_REFUSED,
            details=refusal.details,
        )
    except CannotConnect as error:
        fail_unreachable(settings, str(error))
    except OutcomeUnknown as error:
        step = "look whether it took effect before you repeat it"
        fail(settings, "OUTCOME_UNKNOWN", str(error), step, exit_code=EXIT_UNANSWERED)
    except ClientError as error:
        step = "see `viewstamp status`, or raise --timeout"
        fail(settings, "NO_ANSWER", str(error), step, exit_code=EXIT_UNANSWERED)
    except grpc.aio.AioRpcError as error:
        text = f"{settings.address}: {error.code().name}: {error.details()}"
        fail_unreachable(settings, text)
    except OSError as error:
        fail(settings, "CANNOT_CONNECT", str(error), "check --tls-ca and --address")


def fail_unreachable(settings: Settings, message: str) -> NoReturn:
    """Tell that nobody answered at the address, and what that may come from; exit."""
    step = "start a cluster with `viewstamp up`, or give another --address"
    if settings.tls_ca is None:
        step += "; if the cluster serves with TLS, give its authority with --tls-ca"
    fail(settings, "CANNOT_CONNECT", message, step, exit_code=EXIT_UNREACHABLE)


def as_logged_in(settings: Settings, stored: StoredToken) -> Settings:
    """Return the settings with the authority that the login used, unless another one is given."""
    if settings.tls_ca is not None or stored.tls_ca is None:
        return settings
    return replace(settings, tls_ca=Path(stored.tls_ca))


def _logged_in(settings: Settings) -> tuple[Settings, dict[str, Any]]:
    """Return the settings and the credentials to connect with; tell how to get some, and exit."""
    for variable, parameter in (
        ("VIEWSTAMP_ACCESS_TOKEN", "access_token"),
        ("VIEWSTAMP_PERSONAL_ACCESS_TOKEN", "personal_access_token"),
    ):
        if os.environ.get(variable):
            return settings, {parameter: os.environ[variable]}
    try:
        stored = TokenStore().get(settings.addresses)
    except ValueError as error:
        fail(settings, "NOT_LOGGED_IN", str(error))
    if stored is None:
        step = f"run `viewstamp login --address {settings.address}`"
        fail(settings, "NOT_LOGGED_IN", f"no login is stored for {settings.address}", step)
    return as_logged_in(settings, stored), {"access_token": stored.access_token}
