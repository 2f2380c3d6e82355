"""Shares: a user who fills a share is refused alone, with the reason and the time to come again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coordinator.gateway.registration import SessionRoom
from coordinator.gateway.shares import Shares
from coordinator.gateway.timers import SessionTimers
from coordinator.mux.replies import ReplyTable, weight
from coordinator.mux.sessions import SessionsMachine
from coordinator.mux.types import (
    IndexedError,
    LoggedSpan,
    RegisterSession,
    RequestReply,
    SpanReply,
)
from coordinator.replica.batcher import LooseCommand, Reply
from coordinator.stages.codec import ProtobufCodec
from tests.coordinator.gateway.test_admission import ROOT, SESSION, AdmissionTrial
from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.api.sessions.v1 import sessions_service_pb2 as sessions
from viewstamp.api.submit.v1 import submit_service_pb2 as submit
from viewstamp.errors import Refusal

POWERLESS, HONEST = 7, 8
REFUSED = b"e" * 300


class ShareTrial:
    """Shares over a real table of replies."""

    def __init__(self) -> None:
        self.replies = ReplyTable(ProtobufCodec())
        self.evicted: list[int] = []
        self.shares = Shares(self.replies, self.evicted.append)
        self.next_session = 1

    def session(self, user_id: int) -> int:
        """Return a new session of a user."""
        session_id, self.next_session = self.next_session, self.next_session + 1
        self.replies.open(session_id, user_id)
        return session_id

    def refused_commands(self, session_id: int) -> RequestReply:
        """Keep the reply to the largest possible request, whose commands were all refused."""
        window = self.replies.window(session_id)
        assert window is not None
        errors = tuple(IndexedError(i, REFUSED) for i in range(limits.REQUEST_COMMANDS_MAX))
        reply = RequestReply(
            session_id, window.last_applied + 1, 1, 1, 1, (SpanReply(b"", errors),)
        )
        self.replies.store(reply)
        return reply

    def ask(self, user_id: int, session_id: int, commands: int = 1) -> Refusal | None:
        """Send one request and have it answered; return why it was refused."""
        try:
            taken = self.shares.take_of_session(user_id, session_id, commands, 100)
        except Refusal as refusal:
            return refusal
        self.shares.give_back(taken)
        return None


def expect_quota(refusal: Refusal | None, share: str) -> None:
    """Check that a refusal names the excess, and when to come again."""
    assert refusal is not None
    assert refusal.reason == Reason.REASON_QUOTA_EXCEEDED
    assert refusal.details["share"] == share
    assert int(refusal.details["retry_delay_ms"]) > 0


def test_ten_sessions_of_a_powerless_user_stop_nobody_else() -> None:
    """Unacknowledged replies keep only their own user out, until some are acknowledged."""
    trial = ShareTrial()
    honest = trial.session(HONEST)
    hoards = [trial.session(POWERLESS) for _ in range(10)]
    for _ in range(limits.SESSION_WINDOW_REQUESTS):
        for hoard in hoards:
            if trial.ask(POWERLESS, hoard, limits.REQUEST_COMMANDS_MAX) is None:
                trial.refused_commands(hoard)
    assert trial.replies.bytes_of_user(POWERLESS) <= limits.SESSION_REPLIES_BYTES_PER_USER_MAX
    expect_quota(trial.ask(POWERLESS, hoards[0], limits.REQUEST_COMMANDS_MAX), "replies")
    refusal = trial.ask(POWERLESS, hoards[0], limits.REQUEST_COMMANDS_MAX)
    assert refusal is not None and "acknowledge" in refusal.message
    assert trial.ask(HONEST, honest, limits.REQUEST_COMMANDS_MAX) is None
    for hoard in hoards:
        trial.replies.acknowledge(hoard, limits.SESSION_WINDOW_REQUESTS)
    assert trial.ask(POWERLESS, hoards[0], limits.REQUEST_COMMANDS_MAX) is None


def test_a_reply_weighs_what_its_refusals_take() -> None:
    """Thousands of small refusals make a reply that is not small."""
    errors = tuple(IndexedError(index, b"e") for index in range(1_000))
    reply = RequestReply(1, 1, 1, 1, 1, (SpanReply(b"", errors),))
    assert weight(reply) > 100_000


def test_one_session_has_a_share_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session beyond its own share is refused, while another session of the same user is not."""
    monkeypatch.setattr(limits, "SESSION_REPLIES_BYTES_PER_SESSION_MAX", 5_000_000)
    trial = ShareTrial()
    hoard, other = trial.session(POWERLESS), trial.session(POWERLESS)
    for _ in range(2):
        trial.refused_commands(hoard)
    expect_quota(trial.ask(POWERLESS, hoard), "replies")
    assert trial.ask(POWERLESS, other) is None


def test_near_the_limit_the_worst_is_ended_and_the_small_go_on() -> None:
    """Many users together fill the table: the largest user's largest session ends; others go on."""
    trial = ShareTrial()
    honest = trial.session(HONEST)
    reply = trial.refused_commands(honest)
    trial.replies.acknowledge(honest, 1)
    hoarders = [(user_id, trial.session(user_id)) for user_id in range(100, 108)]
    worst = hoarders[3][1]
    trial.refused_commands(worst)
    while trial.replies.replies_bytes <= limits.SESSION_REPLIES_BYTES_MAX:
        for _, session_id in hoarders:
            trial.refused_commands(session_id)
    trial.refused_commands(honest)
    assert trial.replies.bytes_of_user(HONEST) == weight(reply)
    assert trial.ask(HONEST, honest) is None
    assert trial.evicted == [worst]
    expect_quota(trial.ask(hoarders[3][0], worst), "replies")
    trial.replies.close(worst)
    trial.ask(HONEST, honest)
    assert trial.evicted[-1] != worst


UNDER_WAY: dict[str, tuple[str, Callable[[Shares, int], object], int]] = {
    "commands": (
        "COMMANDS_UNDER_WAY_PER_USER_MAX",
        lambda shares, user_id: shares.take(user_id, 10, 1),
        10,
    ),
    "bytes": (
        "COMMAND_BYTES_UNDER_WAY_PER_USER_MAX",
        lambda shares, user_id: shares.take(user_id, 1, 10),
        10,
    ),
    "reads": (
        "READS_UNDER_WAY_PER_USER_MAX",
        lambda shares, user_id: shares.take_reads(user_id, 10),
        10,
    ),
}


@pytest.mark.parametrize("share", UNDER_WAY)
def test_what_one_user_has_under_way(share: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of one user ends at that user's share, and others do not notice."""
    name, take, each = UNDER_WAY[share]
    monkeypatch.setattr(limits, name, 3 * each)
    shares = ShareTrial().shares
    for _ in range(3):
        take(shares, POWERLESS)
    with pytest.raises(Refusal) as caught:
        take(shares, POWERLESS)
    expect_quota(caught.value, share)
    take(shares, HONEST)


@pytest.mark.parametrize(
    ("share", "limit"), [("commands", "COMMANDS_UNDER_WAY_MAX"), ("reads", "READS_UNDER_WAY_MAX")]
)
def test_what_all_have_under_way(share: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a full process a user with nothing under way still gets in, and nobody else."""
    monkeypatch.setattr(limits, limit, 30)
    _, take, _ = UNDER_WAY[share]
    shares = ShareTrial().shares
    for _ in range(3):
        take(shares, POWERLESS)
    with pytest.raises(Refusal) as caught:
        take(shares, POWERLESS)
    expect_quota(caught.value, share)
    take(shares, HONEST)


async def test_what_is_answered_or_refused_is_given_back() -> None:
    """No record of answers or refusals is kept for a user who waits for nothing."""
    world = AdmissionTrial()
    loop = asyncio.get_running_loop()
    futures = [await world.admit(number) for number in (1, 2)]
    loose = LooseCommand(200, b"x", 5, 1, "", loop.create_future())
    world.refusal = Refusal(Reason.REASON_NO_SPACE, "full")
    for attempt in (lambda: world.admit(3), lambda: world.submit_loose(loose)):
        with pytest.raises(Refusal, match="full"):
            await attempt()
    await asyncio.sleep(0)
    assert len(world.shares) == 1
    for request in world.logged:
        request.future.set_exception(Refusal(Reason.REASON_NO_SPACE, "full"))
    await asyncio.gather(*futures, return_exceptions=True)
    await asyncio.sleep(0)
    assert len(world.shares) == 0


async def test_who_is_beyond_their_share_keeps_their_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request refused for a share is taken under the same number later."""
    monkeypatch.setattr(limits, "COMMANDS_UNDER_WAY_PER_USER_MAX", 1)
    world = AdmissionTrial()
    await world.admit(1)
    with pytest.raises(Refusal) as caught:
        await world.admit(2)
    expect_quota(caught.value, "commands")
    world.logged[0].future.set_exception(Refusal(Reason.REASON_NO_SPACE, "full"))
    await asyncio.sleep(0)
    request = submit.CommandRequest(
        number=1, spans=[submit.Span(code=200, count=1, items=b"\x0a\x00")]
    )
    await world.commands.admit(SESSION, request, ROOT)


@pytest.mark.parametrize("user_id", [limits.ROOT_USER_ID, POWERLESS])
async def test_leaked_sessions_lock_nobody_out(user_id: int) -> None:
    """A user at the session limit loses the session unused longest before a new one begins."""
    machine = SessionsMachine(ProtobufCodec())
    span = LoggedSpan(1, 1, b"", user_id, 1)
    for session_id in range(1, limits.SESSIONS_PER_USER_MAX + 1):
        machine.apply(RegisterSession(session_id.to_bytes(16, "little")), span, 0, session_id)
    now_ms = [0]
    ended: list[int] = []

    def submit_loose(command: LooseCommand) -> None:
        ended.append(sessions.ExpireSessionRequest.FromString(command.item).session_id)
        assert command.user_id == limits.SYSTEM_USER_ID
        command.future.set_result(Reply(1, 1, 1, ()))

    timers = SessionTimers(machine.live, None, lambda: now_ms[0])  # type: ignore[arg-type]
    room = SessionRoom(machine, timers, submit_loose)
    now_ms[0] = 5
    again = sessions.RegisterSessionRequest(nonce=(5).to_bytes(16, "little"))
    new = sessions.RegisterSessionRequest(nonce=b"n" * 16).SerializeToString()
    await room.make(user_id, again.SerializeToString())
    assert ended == []
    await room.make(user_id, new)
    assert ended == ([1] if user_id == limits.ROOT_USER_ID else [])
    now_ms[0] += limits.SESSION_SPARE_IDLE_MS
    timers.stream_opened(2)
    await room.make(user_id, new)
    assert ended[-1] == (3 if user_id == limits.ROOT_USER_ID else 1)
