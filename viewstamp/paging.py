"""Pages of lists: how many entries each has, and where it begins.

A page token is the last key of the page before and a tag of the list that it belongs to, in
base64url; callers must not look inside. The tag covers the method and the subject of the list: its
parent, or its filter. A token of another list is refused, because its place means nothing in this
list. All domains use this module.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from blake3 import blake3

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

ID_BYTES: Final = 8
TAG_BYTES: Final = 4
# This key comes before every id and every name.
BEFORE_ALL_IDS: Final = -1
BEFORE_ALL_NAMES: Final = ""


def page_size(requested: int) -> int:
    """Return how many entries a page has. Raises Refusal MALFORMED_REQUEST above the limit."""
    return _size(requested, limits.PAGE_SIZE_MAX) or limits.PAGE_SIZE_DEFAULT


def offsets_page_size(requested: int) -> int:
    """Return how many partitions a page has. Raises Refusal MALFORMED_REQUEST above the limit."""
    return _size(requested, limits.OFFSETS_PAGE_MAX) or limits.OFFSETS_PAGE_MAX


def _size(requested: int, limit: int) -> int:
    if requested > limit:
        raise Refusal.of(
            Reason.REASON_MALFORMED_REQUEST, "page_size", page_size=requested, limit=limit
        )
    return requested


class PagedList:
    """One list and its tokens; its method and its parents identify the list.

    Parents are ids. So a renamed parent stays the same parent, and a parent that was deleted and
    created again is a different one.
    """

    __slots__ = ("_method", "_parents")

    def __init__(self, method: str, *parents: int) -> None:
        """Take the RPC's name and the ids of the parents; a list of everything has no parents."""
        self._method = method
        self._parents = parents

    def id_token(self, id_: int) -> str:
        """Return the token of a page that ended with this id."""
        return _encode(id_.to_bytes(ID_BYTES, "big") + self._tag())

    def id_after(self, token: str) -> int:
        """Return the id after which the page begins. Raises Refusal MALFORMED_REQUEST."""
        if not token:
            return BEFORE_ALL_IDS
        key = self._key(token)
        if len(key) != ID_BYTES:
            raise _malformed()
        return int.from_bytes(key, "big")

    def ids_token(self, ids: Sequence[int]) -> str:
        """Return the token of a page that ended with an entity of several ids, in their order."""
        return _encode(b"".join(id_.to_bytes(ID_BYTES, "big") for id_ in ids) + self._tag())

    def ids_after(self, token: str, count: int) -> tuple[int, ...]:
        """Return the ids, `count` of them, after which the page begins; zeros for the first page.

        Raises Refusal MALFORMED_REQUEST.
        """
        if not token:
            return (0,) * count
        key = self._key(token)
        if len(key) != ID_BYTES * count:
            raise _malformed()
        starts = range(0, len(key), ID_BYTES)
        return tuple(int.from_bytes(key[start : start + ID_BYTES], "big") for start in starts)

    def begin(self, token: str) -> int:
        """Return the number at which the page begins, 0 for the first page.

        For lists whose tokens name the first entry of the next page. Raises Refusal
        MALFORMED_REQUEST.
        """
        return self.id_after(token) if token else 0

    def next_id_token(self, ids: Sequence[int], size: int) -> str:
        """Return the token after the first `size` of the ids found; empty if there are no more."""
        return self.id_token(ids[size - 1]) if len(ids) > size else ""

    def name_token(self, name: str) -> str:
        """Return the token of a page that ended with this name."""
        return _encode(name.encode("utf-8") + self._tag())

    def name_after(self, token: str) -> str:
        """Return the name after which the page begins. Raises Refusal MALFORMED_REQUEST."""
        if not token:
            return BEFORE_ALL_NAMES
        try:
            return self._key(token).decode("utf-8")
        except UnicodeDecodeError as error:
            raise _malformed() from error

    def _key(self, token: str) -> bytes:
        """Return the key in a token. Raises Refusal MALFORMED_REQUEST if another list made it."""
        found = _decode(token)
        key, tag = found[:-TAG_BYTES], found[-TAG_BYTES:]
        if len(tag) < TAG_BYTES:
            raise _malformed()
        if tag != self._tag():
            raise Refusal.of(
                Reason.REASON_MALFORMED_REQUEST,
                "page_token_of_another_list",
                field="page_token",
                method=self._method,
            )
        return key

    def _tag(self) -> bytes:
        parents = b"".join(parent.to_bytes(ID_BYTES, "big") for parent in self._parents)
        return blake3(self._method.encode() + b"\0" + parents).digest(length=TAG_BYTES)


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
