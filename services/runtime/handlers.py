"""The handlers of a domain by method code, checked against its protos."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import Message

from services.runtime.domain import BulkHandler, Call, Domain, State
from services.runtime.failures import ApplyError
from viewstamp import routing
from viewstamp.api.domain.v1 import domain_service_pb2 as pb
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.limits import FEATURE_LEVEL_MAX
from viewstamp.routing import Method, MethodKind

# The field of requests that only ask whether a command would succeed.
VALIDATE_ONLY: Final = "validate_only"


@dataclass(frozen=True, slots=True)
class Record:
    """All that the hot path needs of one method."""

    full_name: str
    handler: Callable[[Any, Any, Any], Any]
    request: type[Message]
    batch: type[Any]  # {repeated request items = 1}
    # The feature level from which on its requests may only validate; None if they never may.
    validates_since: int | None
    bulk: BulkHandler[Any] | None
    normalizer: Callable[[Any, Any, Any], Any] | None
    suffix: Callable[[Any, Any], bytes] | None

    def may_validate(self, feature_level: int) -> bool:
        """Return whether a request may ask to change nothing at a feature level."""
        return self.validates_since is not None and feature_level >= self.validates_since


@dataclass(frozen=True, slots=True)
class Handlers:
    """The handlers of one domain. `methods` are the full names it claims, in proto order."""

    commands: Mapping[int, Record]
    queries: Mapping[int, Record]
    methods: tuple[str, ...]


def handlers_of(domain: Domain[Any]) -> Handlers:
    """Return the handlers of a domain by code; methods without a handler are not claimed.

    Raises ValueError for a handler without a method, and for a method that must be normalized and
    has no normalizer.
    """
    methods = [m for file in domain.files for m in routing.methods_of_file(file)]
    commands = _select(methods, MethodKind.COMMAND, domain.commands, domain.stage)
    queries = _select(methods, MethodKind.QUERY, domain.queries, domain.stage)
    claimed = {m.full_name for m in (*commands, *queries)}
    _check_normalizers(commands, domain)
    _check_names("bulk handlers", domain.bulk, domain.commands)
    _check_names("effects", domain.effects, effects_pb2.EffectPayload.DESCRIPTOR.fields_by_name)
    return Handlers(
        commands={m.code: _record(m, domain.commands[m.name], domain) for m in commands},
        queries={m.code: _record(m, domain.queries[m.name], domain) for m in queries},
        methods=tuple(m.full_name for m in methods if m.full_name in claimed),
    )


def description_of(domain: Domain[Any]) -> pb.DescribeResponse:
    """Return what the service of a domain is and which methods it claims."""
    return pb.DescribeResponse(
        stage=domain.stage,  # type: ignore[arg-type]
        file_descriptors=routing.file_closure(domain.files),
        methods=handlers_of(domain).methods,
        section_version=domain.section.version,
        feature_level_max=FEATURE_LEVEL_MAX,
        watched_types=[kind.entity_type for kind in domain.watched if kind.entity_type],
    )


def _select(
    methods: Iterable[Method], kind: MethodKind, handlers: Mapping[str, Any], stage: int
) -> list[Method]:
    """Return the methods of this kind and stage that have a handler."""
    own = [m for m in methods if m.kind is kind and m.owner == stage]
    names = [m.name for m in own]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{kind.value} methods share a name: {', '.join(twice)}")
    _check_names(f"{kind.value} handlers", handlers, names)
    return [m for m in own if m.name in handlers]


def _check_normalizers(commands: Iterable[Method], domain: Domain[Any]) -> None:
    flagged = [m.name for m in commands if m.normalize]
    missing = sorted(set(flagged) - set(domain.normalizers))
    if missing:
        raise ValueError(f"flagged `normalize`, and without a normalizer: {', '.join(missing)}")
    _check_names("normalizers", domain.normalizers, flagged)
    _check_names("suffixes", domain.suffixes, flagged)


def _check_names(what: str, handlers: Mapping[str, Any], known: Iterable[str]) -> None:
    unknown = sorted(set(handlers) - set(known))
    if unknown:
        raise ValueError(f"{what} that nothing in the protos calls for: {', '.join(unknown)}")


def _record(method: Method, handler: Callable[[Any, Any, Any], Any], domain: Domain[Any]) -> Record:
    return Record(
        full_name=method.full_name,
        handler=handler,
        request=method.request,
        batch=routing.batch_class(method.request.DESCRIPTOR),  # type: ignore[arg-type]
        validates_since=_validates_since(method),
        bulk=domain.bulk.get(method.name),
        normalizer=domain.normalizers.get(method.name),
        suffix=domain.suffixes.get(method.name),
    )


def _validates_since(method: Method) -> int | None:
    if VALIDATE_ONLY not in method.request.DESCRIPTOR.fields_by_name:
        return None
    return method.field_levels.get(VALIDATE_ONLY, 1)


def resolver_of(
    domain: Domain[State], item: pb.ResolveItem
) -> Callable[[State, bytes, Call], bytes]:
    """Return the resolver of an item. Raises ProtocolError if the domain does not resolve it."""
    resolve, resolve_grants, gate = domain.resolve, domain.resolve_grants, item.gate
    if item.grants and resolve_grants is not None:
        return resolve_grants
    if item.grants or resolve is None:
        what = "permissions" if item.grants else "streams and topics"
        raise ApplyError(f"this service does not resolve {what}")
    return lambda state, request, call: resolve(state, request, call, gate)
