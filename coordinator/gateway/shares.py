"""Shares: what one user may have under way and leave behind, so that others have room.

A limit for all together protects the process but no user: one who fills it keeps everybody out. So
each user has a share, well below the whole, of the commands and reads under way and of the
unacknowledged replies. Beyond it the user is refused, and told when to come again.

Replies are kept until their client acknowledges them, which may be never. When all of them together
come near the limit, a command in the log ends a session of the user with the most, like the end of
an idle one. Beyond the limit, users with more than an even part of it are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal


class KeptReplies(Protocol):
    """The table of replies as seen from here."""

    @property
    def replies_bytes(self) -> int:
        """Bytes of all replies kept."""
        ...

    @property
    def holder_count(self) -> int:
        """How many users have replies."""
        ...

    def bytes_of_user(self, user_id: int) -> int:
        """Return the bytes of one user's replies."""
        ...

    def bytes_of_session(self, session_id: int) -> int:
        """Return the bytes of one session's replies."""
        ...

    def worst_session(self) -> int | None:
        """Return the largest session of the user with the most."""
        ...


@dataclass(slots=True)
class _Held:
    """What one user has under way."""

    commands: int = 0
    command_bytes: int = 0
    reply_bytes: int = 0  # as expected
    reads: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is under way."""
        return not (self.commands or self.reads or self.command_bytes)


# The share of one request, which `Shares.give_back` returns: user, commands, their bytes, and the
# expected bytes of its reply. A plain tuple: one is made for each request.
Taken: TypeAlias = tuple[int, int, int, int]


class Shares:
    """What is under way by user. Users with nothing under way take no memory."""

    def __init__(self, replies: KeptReplies, evict: Callable[[int], None]) -> None:
        self._replies = replies
        self._evict = evict
        self._held: dict[int, _Held] = {}
        self._commands = 0
        self._reads = 0

    def __len__(self) -> int:
        """Return how many users have something under way."""
        return len(self._held)

    def take(self, user_id: int, commands: int, size: int, reply_bytes: int = 0) -> Taken:
        """Count a request, of a caller without a session if its reply will not be kept.

        Raises Refusal QUOTA_EXCEEDED.
        """
        # A user with nothing under way always gets in.
        held = self._held.get(user_id)
        if held is None:
            held = self._held[user_id] = _Held()
        elif held.commands and (
            held.commands + commands > limits.COMMANDS_UNDER_WAY_PER_USER_MAX
            or held.command_bytes + size > limits.COMMAND_BYTES_UNDER_WAY_PER_USER_MAX
            or self._commands + commands > limits.COMMANDS_UNDER_WAY_MAX
        ):
            raise self._beyond(user_id, commands, size, held)
        self._commands += commands
        held.commands += commands
        held.command_bytes += size
        held.reply_bytes += reply_bytes
        return (user_id, commands, size, reply_bytes)

    def take_of_session(
        self, user_id: int, session_id: int, commands: int, size: int, weight: int = 0
    ) -> Taken:
        """Count a request whose reply will be kept. Raises Refusal QUOTA_EXCEEDED.

        It counts as its number of commands, or as its weight where that is more.
        """
        expected = limits.REPLY_BYTES_EXPECTED
        expected += commands * limits.REPLY_BYTES_EXPECTED_PER_COMMAND
        self._check_replies(user_id, session_id, expected)
        return self.take(user_id, max(commands, weight), size, expected)

    def give_back(self, taken: Taken, _done: object = None) -> None:
        """Return the share of a request that was answered, or refused after all."""
        user_id, commands, size, reply_bytes = taken
        held = self._held[user_id]
        self._commands -= commands
        held.commands -= commands
        held.command_bytes -= size
        held.reply_bytes -= reply_bytes
        if not held.commands and held.is_empty:
            del self._held[user_id]

    def take_reads(self, user_id: int, count: int) -> None:
        """Count reads. Raises Refusal QUOTA_EXCEEDED."""
        held = self._held.get(user_id) or _Held()
        if held.reads and held.reads + count > limits.READS_UNDER_WAY_PER_USER_MAX:
            raise too_much(user_id, "reads", held.reads, limits.READS_UNDER_WAY_PER_USER_MAX)
        if held.reads and self._reads + count > limits.READS_UNDER_WAY_MAX:
            raise full("reads", self._reads, limits.READS_UNDER_WAY_MAX)
        self._held[user_id] = held
        held.reads += count
        self._reads += count

    def give_reads_back(self, user_id: int, count: int) -> None:
        """Return the share of reads."""
        held = self._held[user_id]
        self._reads -= count
        held.reads -= count
        if held.is_empty:
            del self._held[user_id]

    def _beyond(self, user_id: int, commands: int, size: int, held: _Held) -> Refusal:
        """Return the refusal of a request beyond the user's share, or that of all."""
        commands_max = limits.COMMANDS_UNDER_WAY_PER_USER_MAX
        bytes_max = limits.COMMAND_BYTES_UNDER_WAY_PER_USER_MAX
        if held.commands + commands > commands_max:
            return too_much(user_id, "commands", held.commands, commands_max)
        if held.command_bytes + size > bytes_max:
            return too_much(user_id, "bytes", held.command_bytes, bytes_max)
        return full("commands", self._commands, limits.COMMANDS_UNDER_WAY_MAX)

    def _check_replies(self, user_id: int, session_id: int, expected: int) -> None:
        replies = self._replies
        total = replies.replies_bytes
        if total > limits.SESSION_REPLIES_BYTES_NEAR:
            self._evict_worst()
        # Nobody has more than all have together: usually the check ends here.
        held = self._held.get(user_id)
        expected += 0 if held is None else held.reply_bytes
        if total + expected <= limits.SESSION_REPLIES_BYTES_PER_SESSION_MAX:
            return
        of_session = replies.bytes_of_session(session_id)
        if of_session > limits.SESSION_REPLIES_BYTES_PER_SESSION_MAX:
            raise _unacknowledged("session", of_session)
        of_user = replies.bytes_of_user(user_id)
        if of_user and of_user + expected > limits.SESSION_REPLIES_BYTES_PER_USER_MAX:
            raise _unacknowledged("user", of_user)
        if total > limits.SESSION_REPLIES_BYTES_MAX:
            even = limits.SESSION_REPLIES_BYTES_MAX // max(1, replies.holder_count)
            if of_user > even:
                raise _unacknowledged("cluster", total)

    def _evict_worst(self) -> None:
        worst = self._replies.worst_session()
        if worst is not None:
            self._evict(worst)


def too_much(user_id: int, what: str, held: int, held_max: int) -> Refusal:
    """Return the refusal of a request beyond the share of one user."""
    return Refusal(
        Reason.REASON_QUOTA_EXCEEDED,
        f"user {user_id} has {held} {what} under way, and {held_max} are allowed: wait for answers",
        user=user_id,
        share=what,
        held=held,
        held_max=held_max,
        retry_delay_ms=limits.SHARE_RETRY_DELAY_MS,
    )


def full(what: str, held: int, held_max: int) -> Refusal:
    """Return the refusal of a request beyond what all may have under way together."""
    return Refusal(
        Reason.REASON_QUOTA_EXCEEDED,
        f"the cluster has {held} {what} under way, and {held_max} are allowed: try again",
        share=what,
        held=held,
        held_max=held_max,
        retry_delay_ms=limits.SHARE_RETRY_DELAY_MS,
    )


def _unacknowledged(whose: str, replies_bytes: int) -> Refusal:
    return Refusal(
        Reason.REASON_QUOTA_EXCEEDED,
        f"this {whose} has not acknowledged replies of {replies_bytes} bytes, which is too much:"
        " acknowledge some, then try again",
        share="replies",
        whose=whose,
        replies_bytes=replies_bytes,
        retry_delay_ms=limits.REPLIES_RETRY_DELAY_MS,
    )
