"""Pages of the lists of partitions: which part of a list a request asks for, and what follows it.

The token of a page says where it begins, and which list it belongs to.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from blake3 import blake3

from testkit.composite.world import CompositeRefused

PAGE_MAX: Final = 16_384
_TAG_BYTES: Final = 4


def page_of(
    method: str,
    parent: int,
    request: Any,
    entries: list[dict[str, Any]],
    sizes: tuple[int, int] = (PAGE_MAX, PAGE_MAX),
) -> tuple[list[dict[str, Any]], str]:
    """Return the entries of a page, and the token of the next one; entries have a partition.

    `sizes` are that of a page for which nothing was asked, and the largest.
    """
    start = _position(method, parent, request.page_token)
    left = [entry for entry in entries if entry["partition"] >= start]
    default, largest = sizes
    if request.page_size > largest:
        raise CompositeRefused("MALFORMED_REQUEST", page_size=request.page_size)
    size = request.page_size or default
    if len(left) <= size:
        return left, ""
    return left[:size], page_token(method, parent, left[size]["partition"])


def page_token(method: str, parent: int, partition: int) -> str:
    """Return the token of the page of a list that begins with a partition."""
    key = partition.to_bytes(8, "big") + _tag(method, parent)
    return base64.urlsafe_b64encode(key).decode()


def place_token(method: str, parent: int, place: tuple[int, ...]) -> str:
    """Return the token of the page of a list behind an entity of several ids."""
    key = b"".join(each.to_bytes(8, "big") for each in place) + _tag(method, parent)
    return base64.urlsafe_b64encode(key).decode()


def place_after(method: str, parent: int, token: str) -> tuple[int, ...]:
    """Return the ids behind which a page begins."""
    if not token:
        return (0, 0, 0)
    key = _key(method, parent, token)
    if len(key) != 24:
        raise CompositeRefused("MALFORMED_REQUEST")
    return tuple(int.from_bytes(key[start : start + 8], "big") for start in (0, 8, 16))


def _position(method: str, parent: int, token: str) -> int:
    if not token:
        return 0
    key = _key(method, parent, token)
    if len(key) != 8:
        raise CompositeRefused("MALFORMED_REQUEST")
    return int.from_bytes(key, "big")


def _key(method: str, parent: int, token: str) -> bytes:
    try:
        decoded = base64.urlsafe_b64decode(token)
    except ValueError:
        raise CompositeRefused("MALFORMED_REQUEST") from None
    key, tag = decoded[:-_TAG_BYTES], decoded[-_TAG_BYTES:]
    if tag != _tag(method, parent):
        raise CompositeRefused("MALFORMED_REQUEST")
    return key


def _tag(method: str, parent: int) -> bytes:
    return blake3(method.encode() + b"\0" + parent.to_bytes(8, "big")).digest(length=_TAG_BYTES)
