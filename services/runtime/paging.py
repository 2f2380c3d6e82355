"""Pages of lists: how many, and from where on.

A page token is the last key of the page before, in base64url; callers must not look inside.
The same in every domain.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

ID_BYTES: Final = 8
# Before every id and every name.
BEFORE_ALL_IDS: Final = -1
BEFORE_ALL_NAMES: Final = ""


def page_size(requested: int) -> int:
    """Return how many entries a page has. Raises Refusal MALFORMED_REQUEST above the limit."""
    if requested > limits.PAGE_SIZE_MAX:
        raise Refusal.of(
            Reason.REASON_MALFORMED_REQUEST,
            "page_size",
            page_size=requested,
            limit=limits.PAGE_SIZE_MAX,
        )
    return requested or limits.PAGE_SIZE_DEFAULT


def id_token(id_: int) -> str:
    """Return the token of a page that ended with this id."""
    return _encode(id_.to_bytes(ID_BYTES, "big"))


def id_after(token: str) -> int:
    """Return the id after which the page begins. Raises Refusal MALFORMED_REQUEST."""
    if not token:
        return BEFORE_ALL_IDS
    key = _decode(token)
    if len(key) != ID_BYTES:
        raise _malformed()
    return int.from_bytes(key, "big")


def next_id_token(ids: Sequence[int], size: int) -> str:
    """Return the token after the first `size` of the ids found; empty if there are no more."""
    return id_token(ids[size - 1]) if len(ids) > size else ""


def name_token(name: str) -> str:
    """Return the token of a page that ended with this name."""
    return _encode(name.encode("utf-8"))


def name_after(token: str) -> str:
    """Return the name after which the page begins. Raises Refusal MALFORMED_REQUEST."""
    if not token:
        return BEFORE_ALL_NAMES
    try:
        return _decode(token).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _malformed() from error


def _encode(key: bytes) -> str:
    return base64.urlsafe_b64encode(key).decode("ascii")


def _decode(token: str) -> bytes:
    try:
        key = base64.b64decode(token, altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise _malformed() from error
    if _encode(key) != token:
        raise _malformed()
    return key


def _malformed() -> Refusal:
    return Refusal.of(Reason.REASON_MALFORMED_REQUEST, "page_token", field="page_token")
