"""Channels, unary calls, and the identity of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from viewstamp import grpc_transport, limits
from viewstamp.cancellation import answer_of
from viewstamp.client.known_addresses import KnownAddresses
from viewstamp.client.methods import method_of
from viewstamp.client.verdicts import ELSEWHERE, PRIMARY_DETAIL, verdict_on
from viewstamp.errors import Refusal

if TYPE_CHECKING:
    from viewstamp.client.tracing import ClientTracing

UNARY_TIMEOUT_S: Final = 10.0
# This library decides when to reconnect, so each attempt has a channel of its own.
CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.use_local_subchannel_pool", 1),
)

# How many hints in a row the client follows before it goes on with its list. Two replicas that are
# cut off may name each other for ever.
HINTS_IN_A_ROW_MAX: Final = 2

Metadata: TypeAlias = tuple[tuple[str, str], ...]

# How long an address that the cluster told may take to show that the cluster answers there. A
# client that cannot reach such addresses loses no more time for each attempt.
LEARNED_TIMEOUT_S: Final = 2.0

# Metadata of a unary read that the receiving replica answers from its own state.
STALE_METADATA: Final = (("viewstamp-consistency", "stale"),)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a replica listens, and the authority (PEM file) that its certificate must come from.

    Without `tls_ca` the connection is not encrypted.
    """

    address: str
    tls_ca: Path | None = None

    def open(self) -> grpc.aio.Channel:
        """Return a new channel. Raises OSError if the authority's file cannot be read."""
        if self.tls_ca is None:
            return grpc_transport.open_channel(self.address, CHANNEL_OPTIONS)
        texts = grpc_transport.TlsTexts(authority=self.tls_ca.read_bytes())
        return grpc_transport.open_channel(self.address, CHANNEL_OPTIONS, texts)


class Endpoints:
    """The replicas a client may talk to, and the one it tries next.

    With `learns` it also tries replicas whose addresses the cluster tells (`learn`).
    """

    def __init__(
        self, addresses: Iterable[str], tls_ca: Path | None = None, *, learns: bool = True
    ) -> None:
        self._known = KnownAddresses(addresses, learns=learns)
        self._tls_ca = tls_ca
        self._address = self._known.given[0]
        self._hint: str | None = None
        self._is_hint_unconfirmed = False
        self._hints_in_a_row = 0
        self._failures_in_a_row = 0

    @property
    def current(self) -> Endpoint:
        """The replica to talk to."""
        return Endpoint(self._hint or self._address, self._tls_ca)

    def at(self, address: str) -> Endpoint:
        """Return the replica at an address, for one call."""
        return Endpoint(address, self._tls_ca)

    @property
    def is_named(self) -> bool:
        """Whether the present one comes from a hint that named the primary, not from the list."""
        return self._hint is not None

    @property
    def is_unconfirmed(self) -> bool:
        """Whether only the cluster told the address, or who answered at such a one.

        Somebody else may listen there: nothing that is said there is final before the cluster has
        answered.
        """
        is_vouched_for = self._hint is not None and not self._is_hint_unconfirmed
        return not is_vouched_for and not self._known.is_confirmed(self.current.address)

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self._tls_ca is not None

    @property
    def has_others(self) -> bool:
        """Whether there is another replica to talk to."""
        return bool(self.others) or self._hint is not None

    def learn(self, addresses: Iterable[str]) -> None:
        """Take the addresses of all replicas, as the cluster tells them when a stream opens."""
        self._known.learn(addresses)

    def advance(self, hint: str | None = None) -> None:
        """Go on to the replica that the hint names as the primary, else to the next one."""
        if hint and self._hints_in_a_row < HINTS_IN_A_ROW_MAX:
            self._is_hint_unconfirmed = self.is_unconfirmed
            self._hint = hint
            self._hints_in_a_row += 1
            return
        # The replica that gave a useless hint may be cut off itself, so it is not asked again at
        # once.
        self._go_to(self._next)

    def failed(self) -> None:
        """Go on after a replica that cannot be reached, or does not serve.

        Behind one that only the cluster named, those that the user gave have their turn at once:
        perhaps the client reaches no other, and then each disturbance costs one attempt.
        """
        self._failures_in_a_row += 1
        is_learned = self._known.doubt(self._hint or self._address)
        if not is_learned and self._failures_in_a_row > len(self._known.given):
            self._known.forget_doubts()
        is_in_turn = self._hint is not None or not is_learned
        self._go_to(self._next if is_in_turn else self._known.given[0])

    @property
    def others(self) -> list[Endpoint]:
        """The replicas of the list without the present one, in the order of their next turn."""
        present = self.current.address
        known = self._known.beginning_at(self._address)
        return [Endpoint(each, self._tls_ca) for each in known if each != present]

    def go_to(self, endpoint: Endpoint) -> None:
        """Go on to a replica of the list that was seen to lead the cluster."""
        self._known.confirm(endpoint.address)
        self._go_to(endpoint.address)

    def spread(self) -> Endpoints:
        """Return the same replicas for another use, which begins at any one of those given.

        Both know what either learns.
        """
        # Imported late: only watches spread.
        import random

        spread = Endpoints(self._known.given, self._tls_ca)
        spread._known = self._known
        spread._address = self._known.given[random.randrange(len(self._known.given))]
        return spread

    def __len__(self) -> int:
        return len({self._address, *self._known.beginning_at(self._address)})

    def reached(self) -> None:
        """Note that the cluster answers there, so that later hints are followed again."""
        self._is_hint_unconfirmed = False
        self._hints_in_a_row = self._failures_in_a_row = 0
        self._known.confirm(self._hint or self._address)

    @property
    def _next(self) -> str:
        known = self._known.beginning_at(self._address)
        return next((each for each in known if each != self._address), self._address)

    def _go_to(self, address: str) -> None:
        self._address, self._hint, self._hints_in_a_row = address, None, 0

    def __str__(self) -> str:
        return ", ".join(self._known.given)


async def unary(
    channel: grpc.aio.Channel,
    request: Message,
    *,
    access_token: str | None = None,
    timeout_s: float = UNARY_TIMEOUT_S,
    tracing: ClientTracing | None = None,
    stale: bool = False,
    at_revision: int = 0,
) -> Any:
    """Call the method of `request` without a session, and return its response.

    With `stale` the replica at the other end of the channel answers a read from its own state,
    whatever its role. With `at_revision` it is a read of the past.

    Raises Refusal if the cluster refused, grpc.aio.AioRpcError if the call failed otherwise, and
    asyncio.CancelledError if the task was cancelled meanwhile, also if the call has a status then.
    """
    method = method_of(request)
    call = channel.unary_unary(
        method.path,
        request_serializer=method.request.SerializeToString,
        response_deserializer=method.response.FromString,
    )
    past = (("viewstamp-consistency", f"at={at_revision}"),) if at_revision else ()
    sent = (*bearer(access_token), *(STALE_METADATA if stale else past))
    with traced(tracing, method.full_name, sent) as (metadata, answered):
        try:
            response = await answer_of(call(request, metadata=metadata, timeout=timeout_s))
        except grpc.aio.AioRpcError as error:
            refusal = refusal_in(error)
            if refusal is None:
                raise
            raise refusal from error
        answered(response)
        return response


async def ask(
    endpoints: Endpoints, request: Message, *, timeout_s: float, access_token: str | None = None
) -> Any:
    """Call the method of `request` at one endpoint after the other until a replica answers.

    Goes on to the primary that a replica names, or to the next endpoint if a replica does not
    answer or cannot answer yet. Raises the last error of `unary`.
    """
    names_left, others_left = HINTS_IN_A_ROW_MAX, len(endpoints.others)
    while True:
        name = ""
        try:
            async with endpoints.current.open() as channel:
                return await unary(channel, request, access_token=access_token, timeout_s=timeout_s)
        except Refusal as refusal:
            name = refusal.details.get(PRIMARY_DETAIL, "") if names_left else ""
            if not name and (not others_left or verdict_on(refusal) not in ELSEWHERE):
                raise
        except grpc.aio.AioRpcError:
            if not others_left:
                raise
        names_left, others_left = names_left - bool(name), others_left - (not name)
        endpoints.advance(name)


def traced(
    tracing: ClientTracing | None, full_name: str, metadata: Metadata
) -> AbstractContextManager[tuple[Metadata, Callable[[Any], None]]]:
    """Trace a call outside the Submit stream, if the client traces. The call ends with the block.

    Yields the metadata to send, and a function that takes the answer.
    """
    if tracing is None:
        return nullcontext((metadata, lambda _: None))
    return tracing.alone(full_name, metadata)


def bearer(access_token: str | None) -> Metadata:
    """Return the metadata that carries a token."""
    return (("authorization", f"Bearer {access_token}"),) if access_token else ()


def refusal_in(error: grpc.aio.AioRpcError) -> Refusal | None:
    """Return the refusal that a failed call carries, or None if it carries none we know."""
    # Imported late: most calls succeed.
    from viewstamp.status import refusal_of

    try:
        return refusal_of(error)
    except ValueError:
        # A status that contradicts itself, or a reason newer than this library, counts as no
        # refusal.
        return None


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to get an access token: a password, a personal access token, or the token itself."""

    username: str | None = None
    password: str | None = None
    personal_access_token: str | None = None
    access_token: str | None = None

    def __post_init__(self) -> None:
        given = [self.username is not None, self.personal_access_token is not None]
        if sum([*given, self.access_token is not None]) != 1:
            raise ValueError(
                "give exactly one of username (with password), access_token or "
                "personal_access_token"
            )
        if (self.username is None) != (self.password is None):
            raise ValueError("username and password go together")


class AccessTokenSource:
    """The access token in use; a login gets it, and gets a new one after it was refused."""

    def __init__(self, credentials: Credentials, tracing: ClientTracing | None = None) -> None:
        self._credentials = credentials
        self._tracing = tracing
        self._access_token = credentials.access_token
        self._login = asyncio.Lock()

    @property
    def can_renew(self) -> bool:
        """Whether a refused token can be replaced by logging in again."""
        return self._credentials.access_token is None

    async def access_token(self, channel: grpc.aio.Channel) -> str:
        """Return the token, logging in if there is none. Raises Refusal, AioRpcError."""
        async with self._login:
            if self._access_token is None:
                response = await unary(channel, self._login_request(), tracing=self._tracing)
                self._access_token = response.access_token
            return str(self._access_token)

    def forget(self, refused: str | None = None) -> None:
        """Forget a token that the cluster refused, so that the next call logs in.

        With the `refused` token, a newer one stays: of many callers whose token has expired, one
        logs in.
        """
        assert self.can_renew, "an access token without credentials cannot be renewed"
        if refused in (None, self._access_token):
            self._access_token = None

    def forget_renewable(self) -> None:
        """Forget the token if logging in replaces it, because perhaps a stranger gave it."""
        if self.can_renew:
            self._access_token = None

    def _login_request(self) -> Message:
        # Imported late: a caller with an access token does not log in.
        from viewstamp.api.users.v1 import users_service_pb2 as users_pb2

        credentials = self._credentials
        if credentials.personal_access_token is not None:
            return users_pb2.LoginWithTokenRequest(token=credentials.personal_access_token)
        return users_pb2.LoginRequest(
            username=credentials.username or "", password=credentials.password or ""
        )
