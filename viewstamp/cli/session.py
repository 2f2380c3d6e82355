"""How a command reaches the cluster: settings, identity, and one place that reports errors."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import grpc.aio
import typer
from google.protobuf.message import Message

from viewstamp import grpc_transport
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.authorities import authority_problem
from viewstamp.cli.settings import (
    EXIT_REFUSED,
    EXIT_UNANSWERED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Settings,
    fail,
    settings_of,
    told,
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
from viewstamp.client.transport import AccessTokenSource, Credentials, Endpoints, ask
from viewstamp.client.trouble import Trouble, cause_of, words_about
from viewstamp.errors import Refusal
from viewstamp.transports import UnknownTransport

T = TypeVar("T")

# The error that ends a command repeats what the client logs.
logging.getLogger("viewstamp.client").addHandler(logging.NullHandler())

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
    Reason.REASON_GROUP_NOT_EMPTY: "see its members: `viewstamp group get STREAM TOPIC GROUP`",
    Reason.REASON_PARTITION_NOT_FOUND: "see `viewstamp topic partitions list STREAM TOPIC`",
    Reason.REASON_OFFSET_OUT_OF_RANGE: "see `viewstamp topic watermarks STREAM TOPIC`",
    Reason.REASON_BROKER_NOT_FOUND: "see `viewstamp broker list`",
    Reason.REASON_BROKER_IN_USE: "see `viewstamp topic placements STREAM TOPIC`, and move what it "
    "has with `viewstamp topic place`",
    Reason.REASON_NOT_ENOUGH_BROKERS: "see `viewstamp broker list`: which are fenced or drained",
    Reason.REASON_REPLICAS_NOT_IN_SYNC: "see `viewstamp topic placements STREAM TOPIC`",
    Reason.REASON_TOKEN_NOT_FOUND: "see `viewstamp token list`, or `viewstamp token list "
    "--user USER`",
    Reason.REASON_SNAPSHOT_NOT_FOUND: "see `viewstamp snapshot list`",
    Reason.REASON_SNAPSHOT_IN_PROGRESS: "wait for it (`viewstamp snapshot list`), then try again",
    Reason.REASON_SNAPSHOT_IN_USE: "see `viewstamp snapshot list`",
    Reason.REASON_REVISION_MISMATCH: "repeat it with the modified_revision that you find then",
    Reason.REASON_REVISION_COMPACTED: "read at the oldest revision named, or later; to watch, list "
    "what you need, then watch without --from-revision",
    Reason.REASON_SESSION_LIMIT: "close other clients, or wait 10 minutes for idle sessions to end",
    Reason.REASON_FEATURE_LEVEL_UNSUPPORTED: "upgrade or start the replicas named, then look at "
    "`viewstamp cluster feature-level`",
    Reason.REASON_FEATURE_LEVEL_MISMATCH: "see `viewstamp cluster feature-level`",
    Reason.REASON_FEATURE_LEVEL_REQUIRED: "see whether it could be raised: `viewstamp cluster "
    "feature-level --raise --dry-run`",
    Reason.REASON_REPLICA_NOT_FOUND: "see `viewstamp replica list`",
    Reason.REASON_REPLICA_LIMIT: "see `viewstamp replica list`: which could be removed",
    Reason.REASON_REPLICA_NOT_READY: "see how far it is: `viewstamp replica list`; `viewstamp "
    "replica promote ID --wait` waits for it",
    Reason.REASON_QUORUM_AT_RISK: "see which are away: `viewstamp replica list`",
    Reason.REASON_NO_OTHER_REPLICA: "add one first: `viewstamp replica add PEER_ADDRESS`",
    Reason.REASON_NO_SPACE: "free disk space on the cluster's machines (`viewstamp status`)",
    Reason.REASON_INTERNAL: "this is a defect: report it with the coordinator's log",
}

# Long enough to find out that the address of the primary is unknown here.
FIRST_TRY_S: Final = 1.0

# What to do about a failed connection.
CONNECTING_STEPS: Final = {
    Trouble.NOBODY_LISTENS: "start a cluster with `viewstamp up`, or give another --address",
    Trouble.NAME_UNKNOWN: "check the host name in --address",
    Trouble.PRIMARY_UNKNOWN: "give the --address of the primary, or forward a port to "
    "it: `viewstamp status --here` says which replica it is",
    Trouble.NO_TLS: "leave out --tls-ca, or give another --address; log in again if the login "
    "keeps an authority",
    Trouble.UNTRUSTED: "give the PEM file of the CA that signed the certificate with --tls-ca",
    Trouble.EXPIRED: "have the certificate of the cluster renewed",
    Trouble.OTHER_NAME: "give an --address whose host the certificate names",
    Trouble.CLOSED: "if the cluster serves with TLS, give the PEM file of its CA with --tls-ca",
    Trouble.NO_CLUSTER: "check host and port in --address",
    Trouble.OTHER: "see whether a cluster runs there, or give another --address",
}


def run(
    context: typer.Context, action: Callable[[Client], Awaitable[T]], revision: int | None = None
) -> T:
    """Connect, run `action` with the client, and return its result.

    With a `revision` everything is read at it.
    Reports errors and exits: 1 if the cluster refused, 3 if it could not be reached.
    """
    settings, identity = _logged_in(settings_of(context))

    async def connected() -> T:
        async with await _client(settings, identity) as client:
            return await action(client if revision is None else client.at(revision))

    return guarded(settings, connected)


async def _client(settings: Settings, identity: dict[str, Any]) -> Client:
    """Return a client of the primary; through a backup if the primary's address is unknown."""
    options = {**identity, "tls_ca": settings.tls_ca, "timeout_s": settings.timeout_s}
    for patience_s in (min(FIRST_TRY_S, settings.connect_timeout_s), settings.connect_timeout_s):
        try:
            return await connect(
                settings.addresses, **options, connect_timeout_s=patience_s, register_session=False
            )
        except CannotConnect as error:
            if error.cause is Trouble.PRIMARY_UNKNOWN:
                break
            if patience_s == settings.connect_timeout_s:
                raise
    # Imported late: few callers cannot reach the primary.
    from viewstamp.cli.relayed import RelayedClient

    endpoints = Endpoints(settings.addresses, settings.tls_ca)
    credentials = AccessTokenSource(Credentials(**identity))
    return RelayedClient(endpoints, credentials, settings.timeout_s)


def ask_here(context: typer.Context, request: Message) -> Any:
    """Let the first replica of the address answer from its own state, even if that is old."""
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
    """Run `action` in an event loop; report an error, and exit."""

    async def awaited() -> T:
        return await action()

    try:
        grpc_transport.present()
        return asyncio.run(awaited())
    except UnknownTransport as error:
        step = "name one of them, or none"
        fail(settings, "UNKNOWN_TRANSPORT", str(error), step, exit_code=EXIT_USAGE)
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
        fail_unreachable(settings, str(error), error.cause)
    except OutcomeUnknown as error:
        step = "look whether it took effect before you repeat it"
        fail(settings, "OUTCOME_UNKNOWN", str(error), step, exit_code=EXIT_UNANSWERED)
    except ClientError as error:
        step = "see `viewstamp status`, or raise --timeout"
        fail(settings, "NO_ANSWER", str(error), step, exit_code=EXIT_UNANSWERED)
    except grpc.aio.AioRpcError as error:
        has_tls = settings.tls_ca is not None
        text = words_about(error, settings.address, has_tls=has_tls)
        fail_unreachable(settings, text, cause_of(error, has_tls=has_tls))
    except OSError as error:
        fail(settings, "CANNOT_READ", told(error), "check the paths that were given")


def fail_unreachable(settings: Settings, message: str, cause: Trouble) -> NoReturn:
    """Report why no cluster answered at the address, and what to do; exit."""
    step = CONNECTING_STEPS[cause]
    fail(settings, "CANNOT_CONNECT", message, step, exit_code=EXIT_UNREACHABLE)


def as_logged_in(settings: Settings, stored: StoredToken) -> Settings:
    """Return the settings with the authority that the login used, unless another one is given.

    Reports a missing file, and exits.
    """
    if settings.tls_ca is not None or stored.tls_ca is None:
        return settings
    if problem := authority_problem(Path(stored.tls_ca)):
        text = f"the login names an authority that is of no use: {problem}"
        fail(settings, "CANNOT_READ", text, "give the PEM file of the cluster's CA with --tls-ca")
    return replace(settings, tls_ca=Path(stored.tls_ca))


def kept_credentials(settings: Settings) -> tuple[Settings, dict[str, Any]] | None:
    """Return the settings and the credentials of the environment or a login; None without any.

    Raises ValueError for a damaged file of logins. Reports a missing authority, and exits.
    """
    for variable, parameter in (
        ("VIEWSTAMP_ACCESS_TOKEN", "access_token"),
        ("VIEWSTAMP_PERSONAL_ACCESS_TOKEN", "personal_access_token"),
    ):
        if os.environ.get(variable):
            return settings, {parameter: os.environ[variable]}
    stored = TokenStore().get(settings.addresses)
    if stored is None:
        return None
    return as_logged_in(settings, stored), {"access_token": stored.access_token}


def _logged_in(settings: Settings) -> tuple[Settings, dict[str, Any]]:
    """Return the settings and the credentials; without a login, report how to log in, and exit."""
    try:
        found = kept_credentials(settings)
    except ValueError as error:
        fail(settings, "NOT_LOGGED_IN", str(error))
    if found is None:
        _check_that_a_cluster_answers(settings)
        step = f"run `viewstamp login --address {settings.address}`"
        fail(settings, "NOT_LOGGED_IN", f"no login is stored for {settings.address}", step)
    return found


def _check_that_a_cluster_answers(settings: Settings) -> None:
    """Report if no cluster answers at the address, and exit, because a login would not help."""

    async def asked() -> None:
        endpoints = Endpoints(settings.addresses, settings.tls_ca)
        with suppress(Refusal):  # only a cluster refuses
            request = cluster_pb2.GetStatusRequest()
            await ask(endpoints, request, timeout_s=settings.connect_timeout_s)

    guarded(settings, asked)
