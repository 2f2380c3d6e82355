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


def _position(method: str, parent: int, token: str) -> int:
    if not token:
        return 0
    try:
        key = base64.urlsafe_b64decode(token)
    except ValueError:
        raise CompositeRefused("MALFORMED_REQUEST") from None
    if key[8:] != _tag(method, parent):
        raise CompositeRefused("MALFORMED_REQUEST")
    return int.from_bytes(key[:8], "big")


def _tag(method: str, parent: int) -> bytes:
    return blake3(method.encode() + b"\0" + parent.to_bytes(8, "big")).digest(length=_TAG_BYTES)
