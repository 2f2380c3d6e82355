"""The log and the state hold refusals as data: their bytes are fixed and have no words."""

from __future__ import annotations

from random import Random

import pytest

from coordinator.base.slices import at_once
from coordinator.gateway import replies
from coordinator.mux.requests import RequestWork, SessionsStage
from coordinator.mux.stage import Stage
from coordinator.mux.types import (
    CommittedPrepare,
    IndexedError,
    LoggedRequest,
    RegisterSession,
    SpanReply,
)
from coordinator.mux.types import LoggedSpan as MuxSpan
from coordinator.replica.batcher import AnsweredSpan as ShellReply
from coordinator.replica.batcher import Reply
from coordinator.stages import codec
from coordinator.stages.errors import without_text
from services.runtime.failures import internal_error
from services.streams.refusals import topic_not_found
from tests.composite.trial import CompositeTrial, check_same
from viewstamp import errors, limits
from viewstamp.api.domain.v1 import domain_service_pb2 as domain_pb2
from viewstamp.api.errors.v1 import errors_pb2
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.log.v1 import log_pb2
from viewstamp.errors import Refusal
from viewstamp.names import check_length
from viewstamp.texts import general, table

SESSION = 5
CLUSTER = bytes(16)
WORDY = errors_pb2.Error(reason=Reason.REASON_STREAM_EXISTS, message="it is taken")
# The texts of this many refusals exceed a reply.
MANY = 2_000


def encoded(refusal: Refusal) -> bytes:
    """Return a refusal as it is kept."""
    return refusal.to_error().SerializeToString(deterministic=True)


def of_a_name() -> Refusal:
    """Return the refusal of a name that is too short."""
    with pytest.raises(Refusal) as caught:
        check_length("", reason=Reason.REASON_INVALID_TOPIC_NAME, bytes_min=1, bytes_max=255)
    return caught.value


def test_bytes_of_refusals() -> None:
    """The bytes of refusals are those of their reason, details in order of mention, and case."""
    mux = codec.ProtobufCodec()
    gap = mux.encode_refusal("REQUEST_GAP", {"session": "3", "resend_from": "8"})
    found = [
        encoded(topic_not_found("caf\u00e9", 7)),
        encoded(of_a_name()),
        internal_error("there").SerializeToString(deterministic=True),
        gap,
        mux.encode_part_refusal(gap, 2),
    ]
    assert [each.hex() for each in found] == [
        "08031a0f0a0673747265616d1205636166c3a91a0a0a05746f706963120137",
        "082b1a0a0a0562797465731201301a0e0a0962797465735f6d696e1201311a100a0962797465735f6d6178"
        "120332353522066c656e677468",
        "0894011a0e0a05776865726512057468657265",
        "087a1a0c0a0773657373696f6e1201331a100a0b726573656e645f66726f6d120138",
        "087a1a0c0a0773657373696f6e1201331a100a0b726573656e645f66726f6d1201381a090a0470617274120132",
    ]


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_rendered_at_log_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines and the mux run whole histories without rendering a text, so none enters state."""

    def forbidden(*_: object) -> str:
        raise AssertionError("a text was rendered at log order")

    monkeypatch.setattr(errors, "render", forbidden)
    trial = CompositeTrial(Random(seed))
    trial.run(15)
    for module, name in ((table, "TEXTS"), (general, "GENERAL")):
        monkeypatch.setattr(module, name, {})
    check_same(trial.replica, trial.replayed(seed))
    assert any(came_to != "ok" for _, came_to in trial.met)


def test_words_are_left_out_of_logs_and_answers_of_services() -> None:
    """Words that an older build logged, or a service sent, go no further than the codec."""
    request = log_pb2.LoggedRequest(session_id=SESSION, number=1)
    request.spans.add(code=200, count=1).refused.add(index=0, error=WORDY)
    outcome = domain_pb2.Outcome()
    outcome.command.errors.add(index=0, error=WORDY)
    (logged,) = at_once(codec.logged_requests([request]))
    reply = at_once(
        codec.decode_reply(Stage.STREAMS, domain_pb2.BatchReply(sequence=1, outcomes=[outcome]))
    )
    expected = IndexedError(0, errors_pb2.Error(reason=WORDY.reason).SerializeToString())
    assert logged.spans[0].refused == (expected,)
    assert reply.outcomes[0].errors == (expected,)  # type: ignore[union-attr]


class RefusedText:
    """Return a span whose only command was refused."""

    def __init__(self, error: bytes) -> None:
        self._error = error

    def reply(self) -> SpanReply:
        """Return the refusal."""
        return SpanReply(b"\x0a\x00", (IndexedError(0, self._error),))

    def standing_segments(self) -> tuple[()]:
        """Return nothing: the command changed nothing."""
        return ()


@pytest.mark.parametrize("level", [1, limits.FEATURE_LEVEL_BOUNDED])
def test_level_1_keeps_reasons_alone(level: int) -> None:
    """Callers get everything; the stored part of level 1 is what both builds know."""
    stage = SessionsStage(codec.ProtobufCodec())
    stage.machine.apply(RegisterSession(b"n" * 16), MuxSpan(1, 1, b"", 3, 1), 0, SESSION)
    stage.replies.open(SESSION, 3)
    request = LoggedRequest(SESSION, 1, 0, (MuxSpan(200, 1, b"\x0a\x00", 3, 1),))
    work = RequestWork(request, 1)
    error = encoded(topic_not_found("a", "b"))
    assert stage.admits(work)
    work.spans.append(RefusedText(error))
    answer = stage.apply(CommittedPrepare(1, 1, 1, 1_000, level, (request,)), work)
    assert answer.spans[0].errors[0].error == error
    window = stage.replies.window(SESSION)
    assert window is not None
    kept = window.replies[1].spans[0].errors[0].error
    assert kept == (without_text(error) if level == 1 else error)
    assert without_text(WORDY.SerializeToString()) == without_text(
        errors_pb2.Error(reason=WORDY.reason, case="newer").SerializeToString()
    )


def test_texts_of_a_reply_are_bounded() -> None:
    """Refusals of one reply have texts as far as they fit; a client makes the others itself."""
    error = topic_not_found("s" * 255, "t" * 255).to_error()
    span = ShellReply(
        b"\x0a\x00" * MANY,
        tuple(errors_pb2.IndexedError(index=index, error=error) for index in range(MANY)),
    )
    answer = replies.command_reply(1, Reply(1, 1, 1, (span,)), CLUSTER, ())
    texts = [each.error.message for each in answer.spans[0].errors]
    first_without = texts.index("")
    assert 0 < first_without < MANY and not any(texts[first_without:])
    assert sum(len(text) for text in texts) <= limits.REPLY_TEXTS_BYTES_MAX
    assert Refusal.from_error(answer.spans[0].errors[-1].error).message == texts[0]
    assert not error.message, "what is kept was changed"


def test_an_answer_that_is_nearly_full_gets_no_texts() -> None:
    """Texts never make an answer larger than clients accept."""
    error = topic_not_found("s", "t").to_error()
    room = replies.ANSWER_BYTES_MAX
    for filler, has_text in ((room - 400, True), (room - 100, False)):
        span = ShellReply(bytes(filler), (errors_pb2.IndexedError(index=0, error=error),))
        answer = replies.read_reply(1, Reply(1, 1, 1, (span,)), CLUSTER)
        assert bool(answer.spans[0].errors[0].error.message) is has_text
        assert answer.ByteSize() < limits.MESSAGE_BYTES_MAX
