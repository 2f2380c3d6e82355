"""Limits on guessing a secret: failures per key and window.

Part of the shell: it reads a clock, and several threads use it. Each replica counts for itself.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from viewstamp.api.errors.v1.errors_pb2 import Reason
from viewstamp.errors import Refusal

# More keys than can fail within a minute, at one argon2 each, on any present machine.
KEYS_MAX: Final = 65_536

_MICROSECONDS_PER_MILLISECOND: Final = 1000


@dataclass(slots=True)
class _Attempts:
    """What is known of one key."""

    failed_at_us: deque[int] = field(default_factory=deque)
    in_flight: int = 0


class Throttle:
    """Refuses attempts on a key that failed `failures_max` times within the last `window_us`.

    Attempts under way count as failures until they are decided. A further one waits for them, so
    that parallel attempts cannot exceed the limit, and none is refused below it.
    """

    def __init__(
        self,
        clock_us: Callable[[], int],
        *,
        failures_max: int,
        window_us: int,
        keys_max: int = KEYS_MAX,
    ) -> None:
        self._clock_us = clock_us
        self._failures_max = failures_max
        self._window_us = window_us
        self._keys_max = keys_max
        self._attempts: dict[bytes, _Attempts] = {}
        self._changed = threading.Condition()

    def attempt(self, key: bytes, check: Callable[[], bool]) -> bool:
        """Return the result of `check`; False counts as a failure, an exception does not.

        Raises Refusal QUOTA_EXCEEDED, without calling `check`, if the key may not try now.
        """
        self._begin(key)
        succeeded = None
        try:
            succeeded = check()
        finally:
            self._end(key, failed=succeeded is False)
        return succeeded

    def check(self, key: bytes) -> None:
        """Raise Refusal QUOTA_EXCEEDED if the key may not try now."""
        with self._changed:
            attempts = self._attempts.get(key)
            if attempts is None:
                return
            self._drop_old(attempts)
            if len(attempts.failed_at_us) >= self._failures_max:
                raise self._refusal(attempts.failed_at_us[0])

    def fail(self, key: bytes) -> None:
        """Count a failure found otherwise; at most as many as the limit."""
        with self._changed:
            failed_at_us = self._attempts_of(key).failed_at_us
            if len(failed_at_us) < self._failures_max:
                failed_at_us.append(self._clock_us())

    def _begin(self, key: bytes) -> None:
        with self._changed:
            while True:
                attempts = self._attempts_of(key)
                if len(attempts.failed_at_us) >= self._failures_max:
                    raise self._refusal(attempts.failed_at_us[0])
                if len(attempts.failed_at_us) + attempts.in_flight < self._failures_max:
                    break
                self._changed.wait()
            attempts.in_flight += 1

    def _end(self, key: bytes, *, failed: bool) -> None:
        with self._changed:
            attempts = self._attempts[key]
            attempts.in_flight -= 1
            if failed:
                attempts.failed_at_us.append(self._clock_us())
            self._forget_if_idle(key)
            self._changed.notify_all()

    def _attempts_of(self, key: bytes) -> _Attempts:
        """Return the key's attempts without those that no longer count, making room if needed."""
        attempts = self._attempts.get(key)
        if attempts is None:
            if len(self._attempts) >= self._keys_max:
                self._forget_idle()
            attempts = self._attempts[key] = _Attempts()
        self._drop_old(attempts)
        return attempts

    def _drop_old(self, attempts: _Attempts) -> None:
        # A failure in the future was counted before the clock was set back: it cannot be dated.
        now_us = self._clock_us()
        failed = attempts.failed_at_us
        while failed and not 0 <= now_us - failed[0] < self._window_us:
            failed.popleft()

    def _forget_idle(self) -> None:
        for key in list(self._attempts):
            self._drop_old(self._attempts[key])
            self._forget_if_idle(key)
        if len(self._attempts) >= self._keys_max:
            raise self._refusal(self._clock_us())

    def _forget_if_idle(self, key: bytes) -> None:
        attempts = self._attempts[key]
        if not attempts.failed_at_us and not attempts.in_flight:
            del self._attempts[key]

    def _refusal(self, failed_at_us: int) -> Refusal:
        remaining_us = failed_at_us + self._window_us - self._clock_us()
        retry_delay_ms = max(1, -(-remaining_us // _MICROSECONDS_PER_MILLISECOND))
        return Refusal.of(
            Reason.REASON_QUOTA_EXCEEDED, "failed_attempts", retry_delay_ms=retry_delay_ms
        )

    def __len__(self) -> int:
        return len(self._attempts)
