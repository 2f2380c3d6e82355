"""The caller, from the token in the call's metadata, never from a payload."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.tokens import AccessToken, verify

AUTHORIZATION_KEY: Final = "authorization"
# Schemes are case-insensitive (RFC 7235).
BEARER_PREFIX: Final = "bearer "
CACHED_TOKENS_MAX: Final = 10_000


class Authenticator:
    """Verifies access tokens; remembers those whose signature it has checked."""

    def __init__(self, cluster_key: bytes, cluster_id: bytes, clock_us: Callable[[], int]) -> None:
        self._cluster_key = cluster_key
        self._cluster_id = cluster_id
        self._clock_us = clock_us
        self._verified: dict[str, AccessToken] = {}

    def principal(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> AccessToken:
        """Return the caller. Raises Refusal UNAUTHENTICATED."""
        for key, value in metadata or ():
            if key == AUTHORIZATION_KEY:
                return self._verify(str(value))
        raise Refusal(
            Reason.REASON_UNAUTHENTICATED,
            "the call carries no token: log in and send `authorization: Bearer <token>`",
        )

    def check_fresh(self, token: AccessToken) -> None:
        """Raise Refusal UNAUTHENTICATED if the token has expired."""
        if token.expires_at_us <= self._clock_us():
            raise expired()

    def seconds_left(self, token: AccessToken) -> float:
        """Return for how long a token is valid, in seconds."""
        return max(0, token.expires_at_us - self._clock_us()) / 1_000_000

    def _verify(self, value: str) -> AccessToken:
        if value[: len(BEARER_PREFIX)].lower() != BEARER_PREFIX:
            raise Refusal(
                Reason.REASON_UNAUTHENTICATED,
                "the authorization metadata must be `Bearer <token>`",
            )
        text = value[len(BEARER_PREFIX) :]
        cached = self._verified.get(text)
        if cached is None:
            cached = verify(self._cluster_key, self._cluster_id, text, self._clock_us())
            if len(self._verified) >= CACHED_TOKENS_MAX:
                self._verified.clear()
            self._verified[text] = cached
        self.check_fresh(cached)
        return cached


def expired() -> Refusal:
    """Return the refusal of a caller whose token has expired."""
    return Refusal(Reason.REASON_UNAUTHENTICATED, "the access token has expired: log in again")
