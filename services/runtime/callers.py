"""Whose the reads of an item are, if it has several callers: signs of life go together."""

from __future__ import annotations

from collections.abc import Sequence

from services.runtime.domain import Call
from services.runtime.failures import ApplyError
from viewstamp.api.domain.v1 import domain_service_pb2 as pb


def callers_of(item: pb.ResolveItem | pb.QueryItem) -> Sequence[pb.Caller]:
    """Return the caller of each read, or none if all of them have the caller of the item.

    Raises ApplyError for another number of reads than the item has.
    """
    found = sum(caller.count for caller in item.callers)
    if item.callers and found != item.count:
        raise ApplyError(f"{item.count} reads have callers for {found}")
    return [caller for caller in item.callers for _ in range(caller.count)]


def speak_for(caller: pb.Caller, call: Call) -> None:
    """Make the next read that of a caller."""
    call.user_id = caller.user_id
    call.credential_revision = caller.credential_revision
    call.session_id = caller.session_id
