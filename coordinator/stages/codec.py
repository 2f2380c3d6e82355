"""The mux's values to and from protobuf.

The log is parsed here in the same way on every replica: an unparsable part becomes a refusal in the
request, never an error of the replica.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from coordinator.base.slices import STEP_ITEMS, Steps, at_once
from coordinator.mux import catalog_types as catalog
from coordinator.mux import codec as mux_codec
from coordinator.mux import types as mux
from coordinator.stages.catalog_codec import CATALOG_PARSERS, encode_catalog_result
from coordinator.stages.entities import EntityCodec
from coordinator.stages.errors import without_text
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.errors import Refusal
from viewstamp.framing import FramingError, frame, unframe
from viewstamp.limits import SESSION_NONCE_BYTES, TRANSACTION_PARTS_MAX

REGISTER_SESSION_CODE: Final = 1
END_SESSION_CODE: Final = 2
EXPIRE_SESSION_CODE: Final = 3


# --- The log -------------------------------------------------------------------------------------


def requests_of(body: bytes) -> Sequence[log_pb2.LoggedRequest]:
    """Return the requests of a prepare's body as they were logged. Raises DecodeError."""
    return log_pb2.PrepareBody.FromString(body).requests


def logged_requests(
    requests: Iterable[log_pb2.LoggedRequest],
) -> Steps[tuple[mux.LoggedRequest, ...]]:
    """Return requests in the mux's form, in steps."""
    decoded: list[mux.LoggedRequest] = []
    for request in requests:
        spans = yield from _logged_spans(request.spans)
        decoded.append(_logged_request(request, spans))
        if len(decoded) % STEP_ITEMS == 0:
            yield
    return tuple(decoded)


def _logged_spans(spans: Iterable[log_pb2.LoggedSpan]) -> Steps[tuple[mux.LoggedSpan, ...]]:
    decoded: list[mux.LoggedSpan] = []
    for span in spans:
        logged = yield from _logged_span(span)
        decoded.append(logged)
        if len(decoded) % STEP_ITEMS == 0:
            yield
    return tuple(decoded)


def _logged_request(
    request: log_pb2.LoggedRequest, spans: tuple[mux.LoggedSpan, ...]
) -> mux.LoggedRequest:
    return mux.LoggedRequest(
        session_id=request.session_id,
        number=request.number,
        acked=request.acked,
        spans=spans,
        trace_parent=request.trace_parent,
        fingerprint=request.fingerprint,
    )


def _logged_span(span: log_pb2.LoggedSpan) -> Steps[mux.LoggedSpan]:
    refused = _indexed_errors(span.refused)
    parse = _PARSED.get(span.code)
    parts: tuple[tuple[mux.LoggedSpan, ...], ...] = ()
    validated: frozenset[int] = frozenset()
    commands: tuple[mux.SessionCommand | None, ...] = ()
    catalog_commands: tuple[mux.CatalogCommand | None, ...] = ()
    if parse is not None:
        values, refused = yield from _parse_items(span, refused, parse)
        if span.code == mux.TRANSACT_CODE:
            parts = tuple(() if value is None else value.parts for value in values)
            validated = frozenset(i for i, value in enumerate(values) if value and value.validates)
        elif span.code in CATALOG_PARSERS:
            catalog_commands = tuple(values)
        else:
            commands = tuple(values)
    return mux.LoggedSpan(
        code=span.code,
        count=span.count,
        items=span.items,
        user_id=span.user_id,
        credential_revision=span.credential_revision,
        refused=refused,
        parts=parts,
        validated=validated,
        session_commands=commands,
        catalog_commands=catalog_commands,
    )


def _parse_items(
    span: log_pb2.LoggedSpan,
    refused: tuple[mux.IndexedError, ...],
    parse: Callable[[bytes, log_pb2.LoggedSpan], Any],
) -> Steps[tuple[list[Any], tuple[mux.IndexedError, ...]]]:
    """Parse each item, one per step; refused items are None."""
    errors = {error.index: error for error in refused}
    values: list[Any] = [None] * span.count
    try:
        items = _items_of(span)
    except Refusal as refusal:
        why = _encoded(refusal)
        return values, tuple(errors.get(i, mux.IndexedError(i, why)) for i in range(span.count))
    for index, item in enumerate(items):
        if index in errors:
            continue
        yield
        try:
            values[index] = parse(item, span)
        except (DecodeError, ValueError):
            errors[index] = mux.IndexedError(index, _encoded(_malformed("not_its_message")))
        except Refusal as refusal:
            errors[index] = mux.IndexedError(index, _encoded(refusal))
    return values, tuple(errors[index] for index in sorted(errors))


def _items_of(span: log_pb2.LoggedSpan) -> list[bytes]:
    """Return the encoded commands of a span. Raises Refusal if their number is not as claimed."""
    try:
        items = unframe(span.items)
    except FramingError as error:
        raise _malformed("unframed") from error
    if len(items) != span.count:
        raise _malformed("span_count", claimed=span.count, found=len(items))
    return items


def _malformed(case: str, /, **details: object) -> Refusal:
    return Refusal.of(Reason.REASON_MALFORMED_REQUEST, case, **details)


def _encoded(refusal: Refusal) -> bytes:
    return refusal.to_error().SerializeToString(deterministic=True)


def _parse_register(item: bytes, _: log_pb2.LoggedSpan) -> mux.RegisterSession:
    nonce = sessions_pb2.RegisterSessionRequest.FromString(item).nonce
    if len(nonce) != SESSION_NONCE_BYTES:
        raise _malformed("nonce", field="nonce", bytes=len(nonce), bytes_due=SESSION_NONCE_BYTES)
    return mux.RegisterSession(nonce)


def _parse_end(item: bytes, _: log_pb2.LoggedSpan) -> mux.EndSession:
    return mux.EndSession(sessions_pb2.EndSessionRequest.FromString(item).validate_only)


def _parse_expire(item: bytes, _: log_pb2.LoggedSpan) -> mux.ExpireSession:
    request = sessions_pb2.ExpireSessionRequest.FromString(item)
    return mux.ExpireSession(request.session_id, request.last_request_number)


class _Transaction(NamedTuple):
    """The parts of a transaction, and whether it asks to change nothing."""

    parts: tuple[mux.LoggedSpan, ...]
    validates: bool


def _parse_transaction(item: bytes, span: log_pb2.LoggedSpan) -> _Transaction:
    request = submit_pb2.TransactRequest.FromString(item)
    if not request.parts:
        raise _malformed("transaction_parts", parts=0, maximum=TRANSACTION_PARTS_MAX)
    parts = tuple(_logged_part(part.code, part.request, span) for part in request.parts)
    return _Transaction(parts, request.validate_only)


def _logged_part(code: int, item: bytes, span: log_pb2.LoggedSpan) -> mux.LoggedSpan:
    """Return a part of a transaction of `span`; an unparsable part is refused there."""
    refused: tuple[mux.IndexedError, ...] = ()
    catalog_commands: tuple[mux.CatalogCommand | None, ...] = ()
    if code in CATALOG_PARSERS:
        alone = log_pb2.LoggedSpan(code=code, count=1, items=frame(item))
        values, refused = at_once(_parse_items(alone, (), _PARSED[code]))
        catalog_commands = tuple(values)
    return mux.LoggedSpan(
        code=code,
        count=1,
        items=frame(item),
        user_id=span.user_id,
        credential_revision=span.credential_revision,
        refused=refused,
        catalog_commands=catalog_commands,
    )


def _catalog_parser(
    parse: Callable[[bytes], mux.CatalogCommand],
) -> Callable[[bytes, log_pb2.LoggedSpan], mux.CatalogCommand]:
    """Return a parser of a catalog command, which needs nothing of its span."""
    return lambda item, _: parse(item)


_PARSED: Final[dict[int, Callable[[bytes, log_pb2.LoggedSpan], Any]]] = {
    REGISTER_SESSION_CODE: _parse_register,
    END_SESSION_CODE: _parse_end,
    EXPIRE_SESSION_CODE: _parse_expire,
    mux.TRANSACT_CODE: _parse_transaction,
    **{code: _catalog_parser(parse) for code, parse in CATALOG_PARSERS.items()},
}


def _indexed_errors(errors: Collection[errors_pb2.IndexedError]) -> tuple[mux.IndexedError, ...]:
    if not errors:
        return ()
    return tuple(mux.IndexedError(e.index, _without_words(e.error)) for e in errors)


def _without_words(error: errors_pb2.Error) -> bytes:
    """Return an error as it is kept: texts are not state, whoever sent or logged them."""
    if error.message:
        copy = errors_pb2.Error()
        copy.CopyFrom(error)
        copy.ClearField("message")
        error = copy
    return error.SerializeToString(deterministic=True)


def indexed_error(error: mux.IndexedError) -> errors_pb2.IndexedError:
    """Return a refusal as replies carry it."""
    decoded = errors_pb2.IndexedError(index=error.index)
    decoded.error.MergeFromString(error.error)  # in its place: a copy costs as much again
    return decoded


# --- To the stages -------------------------------------------------------------------------------


def encode_batch(batch: mux.StageBatch, clock_us: int = 0) -> domain_pb2.Batch:
    """Return a batch as its stage's service reads it. `clock_us` is for reads between prepares."""
    return domain_pb2.Batch(
        sequence=batch.sequence,
        op=batch.op,
        feature_level=batch.feature_level,
        items=[_ENCODERS[type(item)](item) for item in batch.items],
        clock_us=clock_us,
    )


def _command_item(item: mux.CommandItem) -> domain_pb2.Item:
    return domain_pb2.Item(
        command=domain_pb2.CommandItem(
            code=item.code,
            first_revision=item.first_revision,
            count=item.count,
            items=item.items,
            user_id=item.user_id,
            credential_revision=item.credential_revision,
            session_id=item.session_id,
            timestamp=item.timestamp,
            refused=item.refused,
            contexts=item.contexts,
        )
    )


def _resolve_item(item: mux.ResolveItem) -> domain_pb2.Item:
    return domain_pb2.Item(
        resolve=domain_pb2.ResolveItem(
            code=item.code,
            first_revision=item.first_revision,
            count=item.count,
            items=item.items,
            user_id=item.user_id,
            credential_revision=item.credential_revision,
            gate=item.gate,  # type: ignore[arg-type]
            grants=item.grants,
            refused=item.refused,
            callers=map(_caller, item.callers),
        )
    )


def _effect_item(item: mux.EffectItem) -> domain_pb2.Item:
    return domain_pb2.Item(
        effect=domain_pb2.EffectItem(
            revision=item.revision, payload=item.payload, timestamp=item.timestamp
        )
    )


def _query_item(item: mux.QueryItem) -> domain_pb2.Item:
    return domain_pb2.Item(
        query=domain_pb2.QueryItem(
            query_id=item.query_id,
            code=item.code,
            count=item.count,
            items=item.items,
            user_id=item.user_id,
            credential_revision=item.credential_revision,
            session_id=item.session_id,
            refused=item.refused,
            contexts=item.contexts,
            caller_address=item.caller_address,
            continues=item.continues,
            callers=map(_caller, item.callers),
        )
    )


def _caller(caller: mux.Caller) -> domain_pb2.Caller:
    return domain_pb2.Caller(
        user_id=caller.user_id,
        credential_revision=caller.credential_revision,
        session_id=caller.session_id,
        count=caller.count,
    )


def _proposals_item(item: mux.ProposalsItem) -> domain_pb2.Item:
    encoded = domain_pb2.ProposalsItem()
    if item.tenure is not None:
        encoded.tenure.number = item.tenure.number
        encoded.tenure.elapsed_ms = item.tenure.elapsed_ms
    return domain_pb2.Item(proposals=encoded)


_ENCODERS: Final[dict[type[Any], Callable[[Any], domain_pb2.Item]]] = {
    mux.CommandItem: _command_item,
    mux.ResolveItem: _resolve_item,
    mux.EffectItem: _effect_item,
    mux.QueryItem: _query_item,
    mux.CutItem: lambda cut: domain_pb2.Item(cut=domain_pb2.CutItem(generation=cut.generation)),
    mux.SavepointItem: lambda _: domain_pb2.Item(savepoint=domain_pb2.SavepointItem()),
    mux.KeepItem: lambda _: domain_pb2.Item(keep=domain_pb2.KeepItem()),
    mux.RevertItem: lambda _: domain_pb2.Item(revert=domain_pb2.RevertItem()),
    mux.ProposalsItem: _proposals_item,
}


# --- From the stages -----------------------------------------------------------------------------


def decode_reply(stage: mux.Stage, reply: domain_pb2.BatchReply) -> Steps[mux.StageReply]:
    """Return a service's answer in the mux's form, in steps."""
    outcomes: list[mux.Outcome] = []
    for outcome in reply.outcomes:
        outcomes.append(_outcome(outcome))
        if len(outcomes) % STEP_ITEMS == 0:
            yield
    return mux.StageReply(stage=stage, sequence=reply.sequence, outcomes=tuple(outcomes))


def _outcome(outcome: domain_pb2.Outcome) -> mux.Outcome:
    kind = outcome.WhichOneof("kind")
    if kind == "command":
        command = outcome.command
        return mux.CommandOutcome(
            results=command.results,
            errors=_indexed_errors(command.errors),
            effects=tuple(_effect(effect) for effect in command.effects),
        )
    if kind == "resolve":
        return mux.ResolveOutcome(outcome.resolve.contexts, _indexed_errors(outcome.resolve.errors))
    if kind == "query":
        return decode_query(outcome.query)
    return mux.Done()


def _effect(effect: domain_pb2.Effect) -> mux.Effect:
    return mux.Effect(effect.index, tuple(mux.Stage(to) for to in effect.to), effect.payload)


def decode_query(outcome: domain_pb2.QueryOutcome) -> mux.QueryOutcome:
    """Return the answer to a read in the mux's form."""
    return mux.QueryOutcome(
        query_id=outcome.query_id,
        results=outcome.results,
        errors=_indexed_errors(outcome.errors),
        deferred=outcome.deferred,
        state_digest=outcome.state_digest,
        postponed=outcome.postponed,
    )


# --- What the mux itself encodes and decodes -----------------------------------------------------


class ProtobufCodec(EntityCodec):
    """`mux.codec.Codec` over the generated messages."""

    def encode_session_result(self, result: mux_codec.SessionResult) -> bytes:
        """Return the response message as one frame."""
        if isinstance(result, mux_codec.RegisterResult):
            response = sessions_pb2.RegisterSessionResponse(session_id=result.session_id)
            return frame(response.SerializeToString(deterministic=True))
        return mux.EMPTY_FRAME  # the other responses have only their header

    def encode_transaction_result(self, results: Sequence[bytes]) -> bytes:
        """Return a TransactResponse as one frame."""
        response = submit_pb2.TransactResponse(results=[unframe(result)[0] for result in results])
        return frame(response.SerializeToString(deterministic=True))

    def encode_effect(self, effect: mux_codec.SessionEnded) -> bytes:
        """Return the encoded EffectPayload."""
        payload = effects_pb2.EffectPayload(
            session_ended=effects_pb2.SessionEnded(session_id=effect.session_id)
        )
        return payload.SerializeToString(deterministic=True)

    def decode_effect(self, payload: bytes) -> mux_codec.ForSessions | None:
        """Return the meaning of an effect for sessions, None if it has none."""
        effect = effects_pb2.EffectPayload.FromString(payload)
        kind = effect.WhichOneof("kind")
        if kind == "user_deleted":
            return mux_codec.UserEnded(effect.user_deleted.user_id)
        if kind == "user_deactivated":
            return mux_codec.UserEnded(effect.user_deactivated.user_id)
        if kind == "credentials_changed":
            changed = effect.credentials_changed
            return mux_codec.CredentialsChanged(
                changed.user_id,
                changed.minimum_credential_revision,
                changed.minimum_token_revision,
            )
        if kind == "user_sessions_ended":
            ended = effect.user_sessions_ended
            session_id = ended.session_id if ended.HasField("session_id") else None
            return mux_codec.UserSessionsEnded(ended.user_id, session_id, ended.kept_session_id)
        return None

    def encode_catalog_result(self, result: catalog.CatalogResult) -> bytes:
        """Return the response message as one frame."""
        return encode_catalog_result(result)

    def encode_refusal(self, name: str, details: Mapping[str, str], case: str = "") -> bytes:
        """Return an encoded Error of the reason REASON_<name>."""
        refusal = Refusal.of(Reason.Value("REASON_" + name), case, **details)
        return refusal.to_error().SerializeToString(deterministic=True)

    def encode_without_text(self, error: bytes) -> bytes:
        """Return the error of an entry of level 1 as it is kept."""
        return without_text(error)

    def encode_part_refusal(self, error: bytes, part: int) -> bytes:
        """Return the error with the detail `part` added."""
        decoded = errors_pb2.Error.FromString(error)
        decoded.details.add(key="part", value=str(part))
        return decoded.SerializeToString(deterministic=True)
