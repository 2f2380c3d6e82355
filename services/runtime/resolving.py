"""What a stage makes of the items of later stages, one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from services.runtime.answers import Answers
from services.runtime.callers import callers_of, speak_for
from services.runtime.domain import Call, Deferred
from services.runtime.spans import decode_raw
from viewstamp.api.domain.v1 import domain_service_pb2 as pb


def contexts_of(
    item: pb.ResolveItem,
    resolve: Callable[..., Any],
    call: Call,
    contexts: Answers,
    read: Callable[[Callable[..., Any], Any, Call], bytes | Deferred],
) -> None:
    """Resolve the requests of an item; `read` runs a resolver that leaves no trace."""
    span = decode_raw(item.items, item.count, item.refused)
    callers = callers_of(item)
    for index, request in enumerate(span.requests):
        call.revision = item.first_revision + index
        if callers:
            speak_for(callers[index], call)
        if index in span.skipped:
            contexts.skip(span.skipped[index])
        else:
            contexts.add(read, resolve, request, call)
