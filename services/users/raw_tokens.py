"""Raw personal access tokens: derived, never stored, and recognized by their hash."""

from __future__ import annotations

import base64
import hmac
from typing import Final

from blake3 import blake3

# The prefix shows people and secret scanners what it is.
RAW_TOKEN_PREFIX: Final = "vspat_"

_LABEL: Final = b"viewstamp personal access token v2\x00"
_USER_ID_BYTES: Final = 8


def raw_token(cluster_key: bytes, cluster_id: bytes, user_id: int, origin: bytes) -> str:
    """Return the token of the command that came from `origin`; the same again on a retry.

    Another cluster with the same key makes another token.
    """
    message = _LABEL + cluster_id + user_id.to_bytes(_USER_ID_BYTES, "big") + origin
    secret = base64.b32encode(hmac.digest(cluster_key, message, "sha256"))
    return RAW_TOKEN_PREFIX + secret.decode("ascii").rstrip("=").lower()


def token_hash(raw: str) -> bytes:
    """Return the 32 bytes by which a token is stored and found."""
    return blake3(raw.encode("utf-8")).digest()
