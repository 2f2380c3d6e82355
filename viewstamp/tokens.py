"""Access tokens: who a caller is, signed with the cluster key.

A token is `vsa2.<claims>.<signature>`, both in unpadded base64url. Claims are three big-endian
64-bit integers: user id, stamp, expiry in microseconds since 1970. The stamp is the revision of
the credentials that got the token, with TOKEN_STAMP set if these were a personal access token. The
signature is HMAC-SHA256 under the cluster key over a label, the cluster id and the claims. So a
cluster refuses tokens of another cluster even if both have the same key. The clock is an argument.

Tokens of the form `vsa1`, which named no cluster, are refused: their holders must log in again.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

ACCESS_TOKEN_PREFIX: Final = "vsa2."
# The prefix of older tokens, which every cluster with the same key accepted.
_FORMER_PREFIX: Final = "vsa1."

# Everything derived from the cluster key has a label of its own, so that a value made for one
# purpose is of no use for another.
_LABEL: Final = b"viewstamp access token v2\x00"
_CLAIMS: Final = struct.Struct(">QQQ")
_CLAIMS_CHARACTERS: Final = 32
_SIGNATURE_CHARACTERS: Final = 43
_SHAPE: Final = re.compile(
    rf"vsa2\.([A-Za-z0-9_-]{{{_CLAIMS_CHARACTERS}}})\.([A-Za-z0-9_-]{{{_SIGNATURE_CHARACTERS}}})"
)
_OTHERS_MAY_ACCESS: Final = 0o007


@dataclass(frozen=True, slots=True)
class AccessToken:
    """What a verified token says."""

    user_id: int
    credential_revision: int
    expires_at_us: int


class ClusterKeyError(ValueError):
    """A cluster key that cannot be used; the message names the file, the fault and the remedy."""


def sign(
    cluster_key: bytes,
    cluster_id: bytes,
    user_id: int,
    credential_revision: int,
    expires_at_us: int,
) -> str:
    """Return an access token for a user of a cluster; it is accepted before `expires_at_us`."""
    claims = _CLAIMS.pack(user_id, credential_revision, expires_at_us)
    signature = _encode(_signature(cluster_key, cluster_id, claims))
    return f"{ACCESS_TOKEN_PREFIX}{_encode(claims)}.{signature}"


def verify(cluster_key: bytes, cluster_id: bytes, token: str, now_us: int) -> AccessToken:
    """Return the claims of the token. Raises Refusal UNAUTHENTICATED if it is not valid."""
    if token.startswith(_FORMER_PREFIX):
        raise Refusal(
            Reason.REASON_UNAUTHENTICATED,
            "The access token is of a form that is no longer accepted, since it names no cluster; "
            "log in again.",
        )
    shape = _SHAPE.fullmatch(token)
    if shape is None:
        raise Refusal(
            Reason.REASON_UNAUTHENTICATED,
            "The access token is malformed; send `authorization: Bearer <access token>` with the "
            "token that Login or LoginWithToken returned.",
        )
    claims = base64.urlsafe_b64decode(shape[1])
    # Texts are compared, not bytes: the last character of a signature has bits without a meaning.
    if not hmac.compare_digest(_encode(_signature(cluster_key, cluster_id, claims)), shape[2]):
        raise Refusal(
            Reason.REASON_UNAUTHENTICATED,
            "The access token was not signed by this cluster; log in again, here.",
        )
    access = AccessToken(*_CLAIMS.unpack(claims))
    if now_us >= access.expires_at_us:
        raise Refusal(
            Reason.REASON_UNAUTHENTICATED,
            f"The access token expired at {access.expires_at_us} (microseconds since 1970); "
            "log in again.",
            expires_at=access.expires_at_us,
        )
    return access


def read_cluster_key(path: Path) -> bytes:
    """Return the key in a file of 64 hexadecimal digits. Raises ClusterKeyError, OSError."""
    mode = path.stat().st_mode
    if mode & _OTHERS_MAY_ACCESS:
        raise ClusterKeyError(
            f"cluster key {path} is open to every account (mode {mode & 0o777:04o}); "
            "run `chmod 600` on it"
        )
    text = path.read_bytes().strip()
    try:
        key = binascii.unhexlify(text)
    except binascii.Error:
        key = b""
    if len(key) != limits.CLUSTER_KEY_BYTES:
        raise ClusterKeyError(
            f"cluster key {path} does not hold {2 * limits.CLUSTER_KEY_BYTES} hexadecimal digits "
            f"(it has {len(text)} characters); use the same file on every replica"
        )
    return key


def _signature(cluster_key: bytes, cluster_id: bytes, claims: bytes) -> bytes:
    if len(cluster_id) != limits.CLUSTER_ID_BYTES:
        raise ValueError(f"a cluster id has {limits.CLUSTER_ID_BYTES} bytes, not {len(cluster_id)}")
    if len(cluster_key) != limits.CLUSTER_KEY_BYTES:
        raise ClusterKeyError(
            f"a cluster key has {limits.CLUSTER_KEY_BYTES} bytes, not {len(cluster_key)}"
        )
    return hmac.digest(cluster_key, _LABEL + cluster_id + claims, "sha256")


def _encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode("ascii")
