"""Items of a span that the gateway refused, and effects that mean nothing to sessions."""

from __future__ import annotations

from coordinator.base.slices import at_once
from coordinator.mux.types import TRANSACT_CODE
from coordinator.stages.codec import ProtobufCodec, logged_requests
from viewstamp.api.domain.v1 import effects_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.api.submit.v1 import submit_service_pb2 as submit_pb2
from viewstamp.framing import frame_all


def test_a_refused_transaction_is_not_parsed() -> None:
    """It has no parts, and keeps the refusal that it came with."""
    whole = submit_pb2.TransactRequest(parts=[submit_pb2.TransactionPart(code=200)])
    refusal = errors_pb2.Error(reason=Reason.REASON_MALFORMED_REQUEST)
    request = log_pb2.LoggedRequest(session_id=7, number=1)
    items = frame_all([whole.SerializeToString()] * 2)
    span = request.spans.add(code=TRANSACT_CODE, count=2, items=items)
    span.refused.add(index=0, error=refusal)
    ((logged,),) = (each.spans for each in at_once(logged_requests([request])))
    assert [len(parts) for parts in logged.parts] == [0, 1]
    assert [(each.index, each.error) for each in logged.refused] == [
        (0, refusal.SerializeToString())
    ]


def test_an_effect_for_others_is_none_for_sessions() -> None:
    """They send it themselves."""
    ended = effects_pb2.EffectPayload(session_ended=effects_pb2.SessionEnded(session_id=7))
    assert ProtobufCodec().decode_effect(ended.SerializeToString()) is None
