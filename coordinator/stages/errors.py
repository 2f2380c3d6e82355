"""Refusals as entries of level 1 left them: with texts, which are no longer state."""

from __future__ import annotations

from viewstamp.api.errors.v1 import errors_pb2


def without_text(error: bytes) -> bytes:
    """Return an encoded Error of an entry of level 1 as state keeps it: only its reason.

    Builds of that level put texts into the error, with details made for those texts. A replica that
    restored such an error must hold the same bytes as one that replayed the entry with this build,
    whose details differ. So both keep only the reason, and a retry gets its general text.
    """
    reason = errors_pb2.Error.FromString(error).reason
    return errors_pb2.Error(reason=reason).SerializeToString(deterministic=True)
