"""Limits on logins by name and address, so that nobody's guessing keeps others out.

Failures are counted for a name at an address, for an address, and for a name everywhere. Known and
unknown names have separate tables, so that invented ones take no room, with the same rules, so that
a refusal tells nothing. Only the first count limits a user who recently logged in from an address:
failures elsewhere, or under other names, are not theirs.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from services.runtime.throttle import Throttle
from viewstamp import limits

FAILURES_WINDOW_US: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to log in; `user_id` is None for a name that nobody has."""

    address: str
    username: str
    user_id: int | None

    @property
    def pair(self) -> bytes:
        """The key of this name at this address."""
        return _key("pair", self.address, self.username)


class LoginGuard:
    """Counts failed logins, and remembers where users logged in; used from several threads."""

    def __init__(self, clock_us: Callable[[], int]) -> None:
        def throttle(failures_max: int) -> Throttle:
            return Throttle(clock_us, failures_max=failures_max, window_us=FAILURES_WINDOW_US)

        self._clock_us = clock_us
        self._addresses = throttle(limits.LOGIN_FAILURES_PER_ADDRESS_MAX)
        # By whether the name is known.
        self._pairs = {k: throttle(limits.LOGIN_FAILURES_PER_MINUTE_MAX) for k in (False, True)}
        self._names = {k: throttle(limits.LOGIN_FAILURES_PER_NAME_MAX) for k in (False, True)}
        self._remembered: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._lock = threading.Lock()

    def is_trusted(self, attempt: Attempt) -> bool:
        """Return whether the user recently logged in from this address."""
        if attempt.user_id is None:
            return False
        with self._lock:
            at_us = self._remembered.get((attempt.address, attempt.user_id))
        return at_us is not None and 0 <= self._clock_us() - at_us < limits.LOGIN_REMEMBERED_US

    def check(self, attempt: Attempt) -> None:
        """Raise Refusal QUOTA_EXCEEDED if the attempt must not be made now. Costs nothing."""
        known = attempt.user_id is not None
        self._pairs[known].check(attempt.pair)
        if not self.is_trusted(attempt):
            self._addresses.check(_key("address", attempt.address))
            self._names[known].check(_key("name", attempt.username))

    def attempt(self, attempt: Attempt, matches: Callable[[], bool]) -> bool:
        """Return the result of `matches`, the costly part. Raises Refusal QUOTA_EXCEEDED."""
        self.check(attempt)
        known = attempt.user_id is not None
        succeeded = self._pairs[known].attempt(attempt.pair, matches)
        if succeeded and attempt.user_id is not None:
            self._remember(attempt.address, attempt.user_id)
        elif not succeeded:
            self._addresses.fail(_key("address", attempt.address))
            self._names[known].fail(_key("name", attempt.username))
        return succeeded

    def _remember(self, address: str, user_id: int) -> None:
        with self._lock:
            self._remembered[address, user_id] = self._clock_us()
            self._remembered.move_to_end((address, user_id))
            if len(self._remembered) > limits.LOGINS_REMEMBERED_MAX:
                self._remembered.popitem(last=False)


def _key(*parts: str) -> bytes:
    """Return a key of fixed size: callers choose names, which may be long."""
    encoded = [part.encode("utf-8", "surrogatepass") for part in parts]
    return blake3(b"".join(len(part).to_bytes(4, "big") + part for part in encoded)).digest()
