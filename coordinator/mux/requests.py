"""Prepares and requests under way, and what the sessions stage does with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from coordinator.mux.catalog_types import CatalogChanged, CutTaken, Snapshot
from coordinator.mux.codec import Codec
from coordinator.mux.deduplication import Admission
from coordinator.mux.entities import Session
from coordinator.mux.replies import ReplyTable, is_same
from coordinator.mux.segments import Segment
from coordinator.mux.sessions import (
    HeaderVerdict,
    SessionChanges,
    SessionRefused,
    SessionsMachine,
    at_level,
)
from coordinator.mux.types import (
    EMPTY_FRAME,
    Applied,
    CommittedPrepare,
    Effect,
    Error,
    IndexedError,
    LoggedRequest,
    LoggedSpan,
    MuxEffect,
    MuxError,
    RequestReply,
    SpanReply,
    Stage,
)
from viewstamp import limits


class SpanWork(Protocol):
    """One span of a request under way."""

    def reply(self) -> SpanReply:
        """Return the span's results, once all its runs are done."""
        ...

    def standing_segments(self) -> Iterable[Segment]:
        """Return the segments whose changes stand, once all runs of the span are done."""
        ...


class RequestWork:
    """One request under way. `verdict` is known once its first revision has visited sessions."""

    def __init__(self, request: LoggedRequest, first_revision: int) -> None:
        """Begin before the header check."""
        self.request = request
        self.first_revision = first_revision
        self.spans: list[SpanWork] = []
        self.verdict: HeaderVerdict | SessionRefused | None = None
        # Refusals of principals (user id, stamp) whose credentials had changed at the header check.
        self.outdated: dict[tuple[int, int], Error] = {}
        # Set once a command of this request has ended the request's own session.
        self.is_session_over = False

    def span_replies(self) -> tuple[SpanReply, ...]:
        """Return the results of all spans."""
        return tuple(span.reply() for span in self.spans)


class PrepareWork:
    """One prepare under way."""

    def __init__(self, prepare: CommittedPrepare, last_revision: int) -> None:
        """Begin without requests and runs."""
        self.prepare = prepare
        self.last_revision = last_revision
        self.requests: list[RequestWork] = []
        self.runs_left = 0
        # Set by the run that freezes all stages here.
        self.cut: CutTaken | None = None
        self._registered: list[Session] = []
        self._ended: list[int] = []
        self._users: dict[int, None] = {}
        # Generations that have changed; None: deleted.
        self._catalog: dict[int, Snapshot | None] = {}

    def note(self, changes: SessionChanges) -> None:
        """Note sessions, and users' credentials, that begin or end when this prepare is applied."""
        self._registered.extend(changes.registered)
        self._ended.extend(changes.ended)
        self._users |= dict.fromkeys(changes.users)

    def note_catalog(self, changes: dict[int, Snapshot | None]) -> None:
        """Remember generations that have changed."""
        self._catalog |= changes

    def apply(self, sessions: SessionsStage) -> list[MuxEffect]:
        """Change the reply table and return the effects; in op order only."""
        told: list[MuxEffect] = [self.cut] if self.cut is not None else []
        if self._catalog:
            told.append(_catalog_changed(self._catalog))
        told.append(self._answers(sessions))
        return told

    def _answers(self, sessions: SessionsStage) -> Applied:
        """Change the reply table and return the answers."""
        for session in self._registered:
            sessions.replies.open(session.session_id, session.user_id)
        replies = tuple(sessions.apply(self.prepare, work) for work in self.requests)
        for session_id in self._ended:
            sessions.replies.close(session_id)
        prepare = self.prepare
        ended, users = tuple(self._ended), tuple(self._users)
        return Applied(prepare.op, prepare.view, self.last_revision, replies, ended, users)


class SessionsStage:
    """The first stage: visited in turn like the others, but without a message."""

    def __init__(self, codec: Codec) -> None:
        """Begin without sessions."""
        self.codec = codec
        self.machine = SessionsMachine(codec)
        self.replies = ReplyTable(codec)
        self.admission = Admission(self.machine, self.replies)

    def admits(self, work: RequestWork) -> bool:
        """Return whether the request is applied; the first call checks its header."""
        if work.verdict is None:
            work.verdict = self.machine.check_header(work.request)
            if work.verdict is HeaderVerdict.APPLY:
                self.admission.commit(work.request.session_id, work.request.number)
                self._check_principals(work)
        return work.verdict is HeaderVerdict.APPLY

    def refusal(self, work: RequestWork, span: LoggedSpan, is_internal: bool) -> Error | None:
        """Return why a span of an admitted request is refused as a whole.

        The principal was checked with the header, so that the answer does not depend on runs.
        """
        if work.is_session_over:
            return self.machine.evicted(work.request.session_id)
        if is_internal and span.user_id != limits.SYSTEM_USER_ID:
            return self.codec.encode_refusal(
                "PERMISSION_DENIED", {"code": str(span.code)}, "internal"
            )
        return work.outdated.get((span.user_id, span.credential_revision))

    def enter(self, work: RequestWork, segment: Segment, feature_level: int) -> None:
        """Let a segment pass, refuse it, or apply it if its commands are for sessions.

        `feature_level` is that of the entry.
        """
        if not self.admits(work):
            segment.is_withdrawn = True
            return
        error = self.refusal(work, segment.span, segment.route.internal)
        if error is None and segment.route.owner == Stage.SESSIONS:
            # Register, like every owner, compares stamps at its own revision.
            error = self.machine.check_principal(segment.span)
        if error is not None:
            segment.refuse_rest(error)
        elif segment.route.owner == Stage.SESSIONS:
            self._apply(work, segment, feature_level)

    def apply_effects(self, segments: Iterable[Segment]) -> None:
        """Apply the effects that return to sessions."""
        for segment in segments:
            for item in segment.effects.get(Stage.SESSIONS, ()):
                effect = self.codec.decode_effect(item.payload)
                if effect is not None:
                    self.machine.apply_effect(effect, item.revision)

    def apply(self, prepare: CommittedPrepare, work: RequestWork) -> RequestReply:
        """Let `acked` take effect, then keep the reply; return the answer to the request."""
        request = work.request
        self.replies.acknowledge(request.session_id, request.acked)
        if not request.spans:
            return self._acknowledgement(prepare, work)
        self.admission.apply(request.session_id, request.number)
        if work.verdict is HeaderVerdict.DUPLICATE:
            return self._repeat(prepare, work)
        if isinstance(work.verdict, SessionRefused):
            return _reply(prepare, work, (), work.verdict.error)
        reply = _reply(prepare, work, work.span_replies())
        self.replies.store(self._kept(prepare, reply))
        return reply

    def _kept(self, prepare: CommittedPrepare, reply: RequestReply) -> RequestReply:
        """Return a reply as it is kept: errors of level 1 keep only their reasons.

        Builds of that level kept texts and other details. A restored reply and a replayed one must
        be equal.
        """
        if prepare.feature_level >= limits.FEATURE_LEVEL_BOUNDED:
            return reply
        if not any(span.errors for span in reply.spans):
            return reply
        return replace(reply, spans=tuple(self._reasons_alone(span) for span in reply.spans))

    def _reasons_alone(self, span: SpanReply) -> SpanReply:
        strip = self.codec.encode_without_text
        errors = tuple(IndexedError(error.index, strip(error.error)) for error in span.errors)
        return replace(span, errors=errors)

    def _check_principals(self, work: RequestWork) -> None:
        """Check every principal of a request at its first revision."""
        for span in work.request.spans:
            error = self.machine.check_principal(span)
            if error is not None:
                work.outdated[span.user_id, span.credential_revision] = error

    def _repeat(self, prepare: CommittedPrepare, work: RequestWork) -> RequestReply:
        """Return the first reply to a duplicate: the original has been applied."""
        request = work.request
        window = self.replies.window(request.session_id)
        known = window.replies.get(request.number) if window is not None else None
        if known is not None and is_same(known.fingerprint, _fingerprint(prepare, request)):
            return known
        if known is not None:
            return _reply(prepare, work, (), self._reused(request))
        error = self.codec.encode_refusal(
            "REQUEST_TOO_OLD",
            {"session": str(request.session_id), "number": str(request.number)},
        )
        return _reply(prepare, work, (), error)

    def _reused(self, request: LoggedRequest) -> Error:
        """Return the refusal of a request under the number of another one."""
        return self.codec.encode_refusal(
            "REQUEST_NUMBER_REUSED",
            {"session": str(request.session_id), "number": str(request.number)},
        )

    def _acknowledgement(self, prepare: CommittedPrepare, work: RequestWork) -> RequestReply:
        """Return the answer to a request without commands."""
        session_id = work.request.session_id
        is_known = session_id == limits.GATEWAY_SESSION_ID or self.replies.window(session_id)
        return _reply(prepare, work, (), None if is_known else self.machine.evicted(session_id))

    def _apply(self, work: RequestWork, segment: Segment, feature_level: int) -> None:
        """Apply the commands of a span that sessions owns."""
        span, refused = segment.span, frozenset(segment.refused)
        if len(span.session_commands) != span.count:
            raise MuxError(f"{span.count} session commands, {len(span.session_commands)} decoded")
        frames, errors, effects = [], [], []
        for index, command in enumerate(span.session_commands):
            frame = EMPTY_FRAME
            if index not in refused:
                assert command is not None, f"session command {index} is neither there nor refused"
                revision = segment.first_revision + index
                command = at_level(command, feature_level)
                outcome = self.machine.apply(command, span, segment.session_id, revision)
                if isinstance(outcome, SessionRefused):
                    errors.append(IndexedError(index, outcome.error))
                else:
                    frame = outcome.result
                    if outcome.effect is not None:
                        effects.append(Effect(index, (Stage.CONSUMER_GROUPS,), outcome.effect))
            frames.append(frame)
        segment.results = b"".join(frames)
        segment.refuse(errors)
        segment.emit(effects)
        work.is_session_over = self._is_over(segment.session_id)

    def _is_over(self, session_id: int) -> bool:
        """Return whether a client session has ended."""
        return session_id != limits.GATEWAY_SESSION_ID and self.machine.get(session_id) is None


def _catalog_changed(changes: dict[int, Snapshot | None]) -> CatalogChanged:
    """Return the report to the shell about changed generations."""
    ascending = sorted(changes.items())
    return CatalogChanged(
        tuple(snapshot for _, snapshot in ascending if snapshot is not None),
        tuple(generation for generation, snapshot in ascending if snapshot is None),
    )


def _fingerprint(prepare: CommittedPrepare, request: LoggedRequest) -> bytes:
    """Return the fingerprint; entries of lower levels are answered without one."""
    is_known = prepare.feature_level >= limits.FEATURE_LEVEL_BOUNDED
    return request.fingerprint if is_known else b""


def _reply(
    prepare: CommittedPrepare,
    work: RequestWork,
    spans: tuple[SpanReply, ...],
    error: Error | None = None,
) -> RequestReply:
    """Return the answer to a request that this prepare holds."""
    return RequestReply(
        session_id=work.request.session_id,
        number=work.request.number,
        view=prepare.view,
        op=prepare.op,
        first_revision=work.first_revision,
        spans=spans,
        error=error,
        fingerprint=_fingerprint(prepare, work.request),
    )
