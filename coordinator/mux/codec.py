"""What the mux needs of protobuf, as a protocol: it is injected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from coordinator.mux.catalog_types import CatalogResult
from coordinator.mux.entities import CatalogValue, SessionsValue
from coordinator.mux.types import Error


@dataclass(frozen=True, slots=True)
class RegisterResult:
    """A session was opened, now or earlier with the same nonce."""

    session_id: int


@dataclass(frozen=True, slots=True)
class EndResult:
    """The session has ended."""


@dataclass(frozen=True, slots=True)
class ExpireResult:
    """The session has ended, now or earlier, or was used since and lives."""


SessionResult: TypeAlias = RegisterResult | EndResult | ExpireResult


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session is over (an effect from sessions to consumer groups)."""

    session_id: int


@dataclass(frozen=True, slots=True)
class UserEnded:
    """The user was deleted or deactivated (an effect that sessions receives)."""

    user_id: int


@dataclass(frozen=True, slots=True)
class CredentialsChanged:
    """Stamps below `minimum` are refused from here on (an effect that sessions receives)."""

    user_id: int
    minimum: int
    minimum_token: int = 0
    """The minimum for stamps of personal access tokens, if it is higher."""


@dataclass(frozen=True, slots=True)
class UserSessionsEnded:
    """Sessions of the user end: one, or all if it is None (an effect that sessions receives).

    `kept_session_id` lives on.
    """

    user_id: int
    session_id: int | None
    kept_session_id: int = 0


ForSessions: TypeAlias = UserEnded | CredentialsChanged | UserSessionsEnded


class Codec(Protocol):
    """The encodings that the mux needs, injected so that it depends on no protobuf.

    Every method is deterministic: its bytes are part of replies that replicas must agree on.
    """

    def encode_session_result(self, result: SessionResult) -> bytes:
        """Return the response message as ONE FRAME."""
        ...

    def encode_transaction_result(self, results: tuple[bytes, ...]) -> bytes:
        """Return a TransactResponse as ONE FRAME; each of `results` is the one frame of a part."""
        ...

    def encode_effect(self, effect: SessionEnded) -> bytes:
        """Return the encoded EffectPayload."""
        ...

    def decode_effect(self, payload: bytes) -> ForSessions | None:
        """Return what an effect means for sessions, None if nothing."""
        ...

    def encode_refusal(self, name: str, details: Mapping[str, str], case: str = "") -> Error:
        """Return an error; `name` is a reason without prefix, for example SESSION_EVICTED.

        The error has no text: `viewstamp.texts.table` has it, by reason and `case`.
        """
        ...

    def encode_without_text(self, error: Error) -> Error:
        """Return the error of an entry of level 1 as it is kept: only its reason."""
        ...

    def encode_part_refusal(self, error: Error, part: int) -> Error:
        """Return the error of a transaction: that of its part, with the detail `part` added."""
        ...

    def encode_catalog_result(self, result: CatalogResult) -> bytes:
        """Return the response message as ONE FRAME."""
        ...

    def encode_entity(self, value: SessionsValue | CatalogValue) -> bytes:
        """Return the canonical bytes of an entity, one for each value; safe in any thread."""
        ...

    def decode_sessions_entity(self, kind: int, canonical: bytes) -> SessionsValue:
        """Return an entity of the sessions section. Raises ValueError for bytes that are none."""
        ...

    def decode_catalog_entity(self, kind: int, canonical: bytes) -> CatalogValue:
        """Return an entity of the catalog section. Raises ValueError for bytes that are none."""
        ...
