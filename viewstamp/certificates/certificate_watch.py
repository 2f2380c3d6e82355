"""Certificates of this process over time: renewed files are taken, and their end is announced.

Established connections go on past the end of a certificate, and each new one is refused. So nothing
would be noticed until a link breaks, and then the replica could reach nobody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from enum import Enum
from types import MappingProxyType
from typing import Final, Protocol

from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.certificates.pem_files import Certificates, Expiry, Look, printable
from viewstamp.worker_thread import DaemonThread, WorkerThread

CHECK_INTERVAL_MS: Final = 2_000
# Files that cannot be read for longer are a problem. Slow disks take tenths of a second.
READ_LIMIT_MS: Final = 2_000
# Whoever renews by a machine does so with a third of the lifetime left, so that less is a failure.
# Whoever renews by hand needs to know a month before.
WARNING_LIFETIME_SHARE: Final = 4
WARNING_DAYS: Final = 30
# Files that do not fit together at one check may be under replacement.
BAD_CHECKS_TO_ALARM: Final = 2

_log = logging.getLogger(__name__)

_US_PER_S: Final = 1_000_000
_DAY_S: Final = 24 * 60 * 60
_UNITS: Final = (("days", _DAY_S), ("hours", 3_600), ("minutes", 60), ("s", 1))


class CertificateAlarms(Protocol):
    """Who is told of what is wrong with certificates, one text per kind and flag."""

    def tell(self, kind: cluster_pb2.AlarmKind.ValueType, message: str, subject: str = "") -> None:
        """Raise an alarm, or change what a raised one says."""
        ...

    def clear(self, kind: cluster_pb2.AlarmKind.ValueType, subject: str = "") -> None:
        """Clear an alarm if it is raised."""
        ...


class ExpiryState(Enum):
    """What the time says about a certificate."""

    GOOD = "good"
    ENDS_SOON = "ends soon"
    PART_ENDED = "partly expired"
    EXPIRED = "expired"
    NOT_YET = "not yet valid"


_TEXTS: Final = MappingProxyType(
    {
        ExpiryState.ENDS_SOON: (
            "{file} expires in {left}, at {ends}: renew it. The new files are taken without a"
            " restart. From then on every new connection that needs it is refused"
        ),
        ExpiryState.PART_ENDED: (
            "{file} has a certificate beside its first one that expired at {ends}: new connections"
            " are refused wherever the other side needs it. Renew the chain; the new files are"
            " taken without a restart"
        ),
        ExpiryState.EXPIRED: (
            "{file} expired at {ends}: every new connection that needs it is refused, and only"
            " established ones go on. Renew it; the new files are taken without a restart"
        ),
        ExpiryState.NOT_YET: (
            "{file} is valid from {begins} on, and the clock of this machine is {left} before"
            " that: every new connection that needs it is refused. Correct the clock"
        ),
    }
)


class _Reader:
    """Reads the files of one purpose on a thread of its own, one look at a time.

    The thread does not keep the process alive, and a hanging one has no other look behind it.
    """

    def __init__(
        self, certificates: Certificates, make_thread: Callable[[str], WorkerThread]
    ) -> None:
        self.certificates = certificates
        self._make_thread = make_thread
        self._thread: WorkerThread | None = None
        self._under_way: asyncio.Future[Look] | None = None
        self._is_late = False

    async def read(self, limit_ms: int) -> None:
        """Take what a look has found; without one within the limit, tell that the files hang."""
        if self._under_way is None:
            self._thread = self._thread or self._make_thread("certificates")
            self._under_way = self._thread.call(self.certificates.look)
        look = self._under_way
        # A look that was waited for before must not delay what else is checked.
        await asyncio.wait({look}, timeout=0 if self._is_late else limit_ms / 1000)
        self._is_late = not look.done()
        if self._is_late:
            self.certificates.hangs(limit_ms)
            return
        self._under_way = None
        self.certificates.take(look.result())

    def abandon(self) -> None:
        """Let the thread end when it can."""
        if self._thread is not None:
            self._thread.abandon()
            self._thread = None


class CertificateWatch:
    """Takes renewed files, and raises alarms about certificates. It ends no process."""

    def __init__(
        self,
        watched: Iterable[Certificates | None],
        alarms: CertificateAlarms,
        clock_us: Callable[[], int],
        read_limit_ms: int = READ_LIMIT_MS,
        make_thread: Callable[[str], WorkerThread] = DaemonThread,
    ) -> None:
        """`clock_us` is the wall clock, which decides at the handshake, too. A thread of
        `make_thread` reads the files of each purpose."""
        self._watched = [each for each in watched if each is not None]
        self._readers = [_Reader(each, make_thread) for each in self._watched]
        self._alarms = alarms
        self._clock_us = clock_us
        self._read_limit_ms = read_limit_ms
        self._bad_checks: dict[str, int] = {}
        self._states: dict[str, ExpiryState] = {}

    @property
    def expiries(self) -> Sequence[Expiry]:
        """When each file that is in use ends."""
        return [expiry for each in self._watched for expiry in each.expiries]

    async def run(self) -> None:
        """Check again and again, until cancelled."""
        try:
            while self._watched:
                await self._check_and_go_on()
                await asyncio.sleep(CHECK_INTERVAL_MS / 1000)
        finally:
            self.abandon()

    async def _check_and_go_on(self) -> None:
        """Check once. Certificates in use are worth more than a check that fails."""
        try:
            await self.check()
        except Exception:
            _log.exception("a check of the certificates has failed; the next one follows")

    async def check(self) -> None:
        """Take renewed files, and raise or clear alarms."""
        looks = (each.read(self._read_limit_ms) for each in self._readers)
        ends = await asyncio.gather(*looks, return_exceptions=True)
        now_s = self._clock_us() // _US_PER_S
        for certificates in self._watched:
            self._tell_problem(certificates.files.flag, certificates.problem)
        for expiry in self.expiries:
            self._tell_expiry(expiry, now_s)
        for error in ends:
            if error is not None:
                raise error

    def abandon(self) -> None:
        """Let the reading threads end, without waiting for any."""
        for reader in self._readers:
            reader.abandon()

    def _tell_problem(self, flag: str, problem: str) -> None:
        kind = cluster_pb2.ALARM_KIND_CERTIFICATE_UNUSABLE
        if not problem:
            self._bad_checks[flag] = 0
            self._alarms.clear(kind, flag)
            return
        self._bad_checks[flag] = self._bad_checks.get(flag, 0) + 1
        if self._bad_checks[flag] >= BAD_CHECKS_TO_ALARM:
            kept = "what was read before stays in use until then"
            self._alarms.tell(kind, f"{problem}; {kept}", flag)

    def _tell_expiry(self, expiry: Expiry, now_s: int) -> None:
        kind = cluster_pb2.ALARM_KIND_CERTIFICATE_EXPIRY
        state = state_of(expiry, now_s)
        if state is not self._states.get(expiry.flag):
            # Another state is another line of the log, and not only another text in the status.
            self._alarms.clear(kind, expiry.flag)
        self._states[expiry.flag] = state
        if state is not ExpiryState.GOOD:
            self._alarms.tell(kind, words_about(expiry, state, now_s), expiry.flag)


def state_of(expiry: Expiry, now_s: int) -> ExpiryState:
    """Return what the time says about a certificate."""
    if now_s < expiry.begins_s:
        return ExpiryState.NOT_YET
    if now_s >= expiry.expires_s:
        return ExpiryState.EXPIRED
    if now_s >= expiry.ends_s:
        return ExpiryState.PART_ENDED
    lifetime_s = expiry.ends_s - expiry.begins_s
    warning_s = min(WARNING_DAYS * _DAY_S, lifetime_s // WARNING_LIFETIME_SHARE)
    return ExpiryState.ENDS_SOON if expiry.ends_s - now_s <= warning_s else ExpiryState.GOOD


def words_about(expiry: Expiry, state: ExpiryState, now_s: int) -> str:
    """Return the text of the alarm: which file, how long, and what to do."""
    limit_s = expiry.begins_s if state is ExpiryState.NOT_YET else expiry.ends_s
    ends_s = expiry.expires_s if state is ExpiryState.EXPIRED else expiry.ends_s
    return _TEXTS[state].format(
        file=f"{expiry.flag} {printable(str(expiry.path))}",
        left=_duration(abs(limit_s - now_s)),
        begins=_moment(expiry.begins_s),
        ends=_moment(ends_s),
    )


def _duration(size_s: int) -> str:
    """Return a time in the largest unit of which there are two or more."""
    name, unit_s = next((unit for unit in _UNITS if size_s >= 2 * unit[1]), _UNITS[-1])
    return f"{size_s // unit_s} {name}"


def _moment(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat().replace("+00:00", "Z")
