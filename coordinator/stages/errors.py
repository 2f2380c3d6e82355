"""Refusals as entries of level 1 left them: with texts, which are no longer state."""

from __future__ import annotations

from viewstamp.api.errors.v1 import errors_pb2


def without_text(error: bytes) -> bytes:
    """Return an encoded Error of an entry of level 1 as state keeps it: its reason alone.

    Builds of that level had words in the error, and details that were made for those words. A
    replica that restored them must hold the same bytes as one that replayed the entry with this
    build, whose details differ. So both keep what both know, and a retry gets the reason's
    general text.
    """
    reason = errors_pb2.Error.FromString(error).reason
    return errors_pb2.Error(reason=reason).SerializeToString(deterministic=True)
