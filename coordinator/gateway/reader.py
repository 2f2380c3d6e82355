"""The gateway's reads in the mux's terms: the caller, the spans, and whether they can be read."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from coordinator.gateway.past_reads import PastReads
from coordinator.gateway.reads import ReadConsistency
from coordinator.gateway.requested_reads import RequestedReads
from coordinator.mux import types as mux_types
from coordinator.mux.sessions import SessionsMachine
from coordinator.replica.batcher import Reply
from coordinator.replica.reads import ReplicaReads
from coordinator.replica.serving import Serving
from coordinator.stages.client import StageClient
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal
from viewstamp.limits import ROOT_USER_ID
from viewstamp.routing import Method
from viewstamp.tokens import AccessToken


class MuxReader:
    """Starts reads at this replica."""

    def __init__(
        self,
        reads: ReplicaReads,
        serving: Serving,
        sessions: SessionsMachine,
        services: Mapping[mux_types.Stage, StageClient],
        past: PastReads,
    ) -> None:
        self._reads = reads
        self._serving = serving
        self._sessions = sessions
        self._services = services
        self._past = past

    def read(
        self,
        spans: Sequence[RequestedReads],
        principal: AccessToken | None,
        session_id: int,
        consistency: ReadConsistency,
        address: str,
    ) -> asyncio.Future[Reply]:
        """Start reads for the gateway. Raises Refusal DOMAIN_RESTARTING."""
        read = mux_types.Read(
            token=self._reads.next_token(),
            spans=tuple(self._read_span(span, principal, consistency) for span in spans),
            user_id=None if principal is None else principal.user_id,
            credential_revision=0 if principal is None else principal.credential_revision,
            session_id=session_id,
            caller_address=address,
        )
        if consistency.at_revision:
            methods = [span.method for span in spans]
            return self._past.start(read, methods, consistency.at_revision)
        return self._reads.start(
            read,
            linearizable=consistency.linearizable,
            revision=consistency.at_least_revision,
        )

    def read_together(
        self, method: Method, callers: tuple[mux_types.Caller, ...], items: bytes
    ) -> asyncio.Future[Reply]:
        """Start linearizable reads of several callers. Raises Refusal DOMAIN_RESTARTING."""
        self._check_connected(method)
        count = sum(caller.count for caller in callers)
        span = mux_types.ReadSpan(method.code, count, items)
        read = mux_types.Read(self._reads.next_token(), (span,), None, 0, callers=callers)
        return self._reads.start(read, linearizable=True, revision=0)

    def late(self, deadline_ms: int) -> Refusal | None:
        """Return where to send a linearizable read without an answer here; None if nowhere else."""
        return self._serving.late_read(deadline_ms)

    def _read_span(
        self, span: RequestedReads, principal: AccessToken | None, consistency: ReadConsistency
    ) -> mux_types.ReadSpan:
        method = span.method
        # The present sessions of a backup may be too old: there streams decides, at the position of
        # the read.
        is_current = self._serving.is_primary or not consistency.linearizable
        is_catalog = method.owner == mux_types.Stage.CATALOG
        is_authorized = is_catalog and is_current and self.is_root(principal)
        if not is_authorized:
            self._check_connected(method)
        return mux_types.ReadSpan(
            method.code, span.count, span.items, is_authorized=is_authorized, gate=span.gate
        )

    def is_root(self, principal: AccessToken | None) -> bool:
        """Whether it is root, by credentials that sessions holds for current.

        Root may read everything in catalog, and asks for it when streams, which authorizes
        everybody else, does not answer.
        """
        if principal is None or principal.user_id != ROOT_USER_ID:
            return False
        stamp = mux_types.LoggedSpan(0, 0, b"", principal.user_id, principal.credential_revision)
        return self._sessions.check_principal(stamp) is None

    def _check_connected(self, method: Method) -> None:
        for number in (method.resolve_stage, method.owner):
            client = self._services.get(mux_types.Stage(number)) if number else None
            if client is not None and not client.connected:
                raise Refusal(
                    Reason.REASON_DOMAIN_RESTARTING,
                    f"the service of {mux_types.Stage(number).name.lower()} is restarting: try"
                    " again",
                    stage=mux_types.Stage(number).name.lower(),
                )
