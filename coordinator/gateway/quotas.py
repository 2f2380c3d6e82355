"""Write quotas: how many commands and bytes a second one user, and all together, may send.

Turns in the batcher keep a flood of one user from delaying others by more than their part. Quotas
protect the disk and the other replicas: a user beyond them is refused before the log, and told when
there will be room again.

One request may overdraw an account, so that a large one gets through as well; later requests wait
until that is paid for. The users heard least recently are forgotten first: a forgotten account is a
full one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from viewstamp import limits
from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal


@dataclass(frozen=True, slots=True)
class QuotaConfig:
    """Rates per second; 0 is no limit. An account holds what `burst_ms` milliseconds bring."""

    commands_per_user: int = limits.QUOTA_COMMANDS_PER_USER
    bytes_per_user: int = limits.QUOTA_BYTES_PER_USER
    commands: int = 0
    bytes: int = 0
    burst_ms: int = limits.QUOTA_BURST_MS


class Account:
    """What one user, or all together, may still send, in thousandths, as of some time."""

    __slots__ = (
        "_bytes_max", "_commands_max", "as_of_ms", "byte_rate", "bytes_left", "command_rate",
        "commands_left",
    )  # fmt: skip

    def __init__(self, command_rate: int, byte_rate: int, burst_ms: int, now_ms: int) -> None:
        self.command_rate, self.byte_rate = command_rate, byte_rate
        # An amount without a limit stays at one thousandth, so that it is never used up.
        self.commands_left = self._commands_max = command_rate * burst_ms or 1
        self.bytes_left = self._bytes_max = byte_rate * burst_ms or 1
        self.as_of_ms = now_ms

    def refill(self, now_ms: int) -> None:
        """Add what the elapsed time has brought."""
        elapsed_ms = now_ms - self.as_of_ms
        self.as_of_ms = now_ms
        self.commands_left = min(
            self._commands_max, self.commands_left + self.command_rate * elapsed_ms
        )
        self.bytes_left = min(self._bytes_max, self.bytes_left + self.byte_rate * elapsed_ms)

    def check(self, whose: str) -> None:
        """Raise Refusal QUOTA_EXCEEDED if nothing may be sent now."""
        if self.commands_left <= 0:
            raise _exceeded(whose, "commands", 1 - self.commands_left // self.command_rate)
        if self.bytes_left <= 0:
            raise _exceeded(whose, "bytes", 1 - self.bytes_left // self.byte_rate)

    def charge(self, commands: int, size: int) -> None:
        """Deduct what was sent, even beyond the balance."""
        if self.command_rate:
            self.commands_left -= 1_000 * commands
        if self.byte_rate:
            self.bytes_left -= 1_000 * size


class Quotas:
    """The accounts of all together and of each recent user."""

    def __init__(self, config: QuotaConfig, clock_ms: Callable[[], int]) -> None:
        self._config = config
        self._clock_ms = clock_ms
        self._of_all = Account(config.commands, config.bytes, config.burst_ms, clock_ms())
        self._limits_all = bool(config.commands or config.bytes)
        self._of_user: OrderedDict[int, Account] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of known users."""
        return len(self._of_user)

    def check(self, user_id: int) -> Account:
        """Return the user's account. Raises Refusal QUOTA_EXCEEDED if nothing may be sent now."""
        now_ms = self._clock_ms()
        account = self._of_user.get(user_id)
        if account is None:
            account = self._open(user_id, now_ms)
        elif account.as_of_ms != now_ms:
            self._of_user.move_to_end(user_id)
            account.refill(now_ms)
        if account.commands_left <= 0 or account.bytes_left <= 0:
            account.check("user")
        if self._limits_all:
            self._of_all.refill(now_ms)
            self._of_all.check("cluster")
        return account

    def charge(self, account: Account, commands: int, size: int) -> None:
        """Deduct what was sent from the account that `check` returned, and from that of all."""
        # Inlined, because this runs for each command.
        if account.command_rate:
            account.commands_left -= 1_000 * commands
        if account.byte_rate:
            account.bytes_left -= 1_000 * size
        if self._limits_all:
            self._of_all.charge(commands, size)

    def _open(self, user_id: int, now_ms: int) -> Account:
        config = self._config
        account = Account(config.commands_per_user, config.bytes_per_user, config.burst_ms, now_ms)
        self._of_user[user_id] = account
        if len(self._of_user) > limits.QUOTA_USERS_MAX:
            self._of_user.popitem(last=False)
        return account


def _exceeded(whose: str, what: str, delay_ms: int) -> Refusal:
    return Refusal(
        Reason.REASON_QUOTA_EXCEEDED,
        f"this {whose} has sent more {what} in a second than its quota: try again in {delay_ms} ms",
        share=f"{what}_per_second",
        whose=whose,
        retry_delay_ms=delay_ms,
    )
