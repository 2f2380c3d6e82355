"""Alarms about certificates that end, and about files that do not fit together."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from coordinator.base.alarms import Alarms
from tests.coordinator.peers.certificates import Authority, Period
from viewstamp.api.cluster.v1 import cluster_service_pb2 as cluster_pb2
from viewstamp.certificates.certificate_watch import (
    READ_LIMIT_MS,
    WARNING_DAYS,
    CertificateWatch,
    ExpiryState,
    state_of,
    words_about,
)
from viewstamp.certificates.pem_files import Certificates, Expiry, PemFiles

DAY_S = 24 * 3_600
US_PER_S = 1_000_000
# Years that gRPC's certificates can have, but no clock of a machine.
NOON = datetime.datetime(2026, 6, 1, 12, tzinfo=datetime.UTC)


@dataclass
class CertificateWatchTrial:
    """A watch of one certificate, at a time that the test chooses."""

    authority: Authority
    now_s: int = int(NOON.timestamp())
    alarms: Alarms = field(default_factory=lambda: Alarms(lambda: 0))

    def __post_init__(self) -> None:
        self.renew((NOON, NOON + datetime.timedelta(days=80)))
        pair = self.authority.directory / "gateway"
        files = PemFiles("--tls-certificate", pair.with_suffix(".pem"), pair.with_suffix(".key"))
        self.certificates = Certificates(files)
        self.watch = self.watching(READ_LIMIT_MS)

    def watching(self, read_limit_ms: int) -> CertificateWatch:
        """Return a watch that gives up waiting for a look after so long."""
        watched = (None, self.certificates)
        return CertificateWatch(watched, self.alarms, lambda: self.now_s * US_PER_S, read_limit_ms)

    def renew(self, valid: Period) -> None:
        """Put another certificate into the files."""
        self.authority.issue("gateway", valid=valid)

    async def told(self, days: int = 0) -> list[tuple[str, str]]:
        """Check at so many days after the beginning; return kind and text of the alarms."""
        self.now_s = int(NOON.timestamp()) + days * DAY_S
        await self.watch.check()
        return [
            (cluster_pb2.AlarmKind.Name(alarm.kind).removeprefix("ALARM_KIND_"), alarm.message)
            for alarm in self.alarms.all()
        ]


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[CertificateWatchTrial]:
    """A certificate of 80 days, of which none has passed."""
    made = CertificateWatchTrial(Authority.create(tmp_path / "authority"))
    yield made
    made.watch.abandon()


@pytest.mark.parametrize(
    ("lifetime_s", "left_s", "state"),
    [
        # Long-lived ones: a month before.
        (10 * 365 * DAY_S, 31 * DAY_S, ExpiryState.GOOD),
        (10 * 365 * DAY_S, 30 * DAY_S, ExpiryState.ENDS_SOON),
        # 90 days, renewed by a machine with 30 days left: a week later something is wrong.
        (90 * DAY_S, 30 * DAY_S, ExpiryState.GOOD),
        (90 * DAY_S, 22 * DAY_S, ExpiryState.ENDS_SOON),
        # One hour, renewed with 20 minutes left.
        (3_600, 1_200, ExpiryState.GOOD),
        (3_600, 900, ExpiryState.ENDS_SOON),
        (3_600, 1, ExpiryState.ENDS_SOON),
        (3_600, 0, ExpiryState.EXPIRED),
        (3_600, -10 * 365 * DAY_S, ExpiryState.EXPIRED),
        (3_600, 3_600, ExpiryState.GOOD),
        (3_600, 3_601, ExpiryState.NOT_YET),
    ],
)
def test_states(lifetime_s: int, left_s: int, state: ExpiryState) -> None:
    """The warning begins with the last month or the last quarter, whichever is shorter."""
    ends_s = 1_000 + lifetime_s
    expiry = Expiry("--tls-certificate", Path("tls.crt"), 1_000, ends_s, ends_s)
    assert WARNING_DAYS == 30
    assert state_of(expiry, expiry.ends_s - left_s) is state


@pytest.mark.parametrize(
    ("left_s", "words"),
    [(3 * DAY_S, "3 days"), (2 * DAY_S - 1, "47 hours"), (7_199, "119 minutes"), (1, "1 s")],
)
def test_words(left_s: int, words: str) -> None:
    """A text names flag, file, the time that is left, and the moment."""
    ends_s = int(NOON.timestamp())
    expiry = Expiry("--peer-tls-ca", Path("/etc/ca.crt"), 0, ends_s, ends_s)
    text = words_about(expiry, ExpiryState.ENDS_SOON, ends_s - left_s)
    assert text.startswith(f"--peer-tls-ca /etc/ca.crt expires in {words}, at 2026-06-01T12:00:00Z")


async def test_alarms_follow_the_life_of_a_certificate(
    trial: CertificateWatchTrial, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing, then a warning that counts down, then the end, then nothing after the renewal."""
    assert await trial.told(days=59) == []
    ((kind, text),) = await trial.told(days=60)
    assert (kind, "expires in 20 days" in text) == ("CERTIFICATE_EXPIRY", True)
    ((_, text),) = await trial.told(days=70)
    assert "expires in 10 days" in text
    ((kind, text),) = await trial.told(days=81)
    assert (kind, "expired at 2026-08-20T12:00:00Z" in text) == ("CERTIFICATE_EXPIRY", True)
    assert [r.message for r in caplog.records if r.levelno == logging.ERROR] == ["alarm raised"] * 2
    trial.renew((NOON, NOON + datetime.timedelta(days=365)))
    assert await trial.told(days=81) == []


async def test_a_clock_that_jumps(trial: CertificateWatchTrial) -> None:
    """A clock that goes back is told as such, one that goes far ahead as an end, and both heal."""
    ((_, text),) = await trial.told(days=-10)
    assert "is valid from 2026-06-01T12:00:00Z on, and the clock of this machine is 10 days" in text
    ((_, text),) = await trial.told(days=365 * 10_000_000)
    assert "expired at" in text
    assert await trial.told() == []


async def test_files_that_do_not_fit_together(trial: CertificateWatchTrial) -> None:
    """One check may meet a replacement under way; the next one raises the alarm, until they fit."""
    certificate = trial.authority.directory / "gateway.pem"
    old = certificate.read_bytes()
    certificate.write_bytes(trial.authority.path.read_bytes())
    assert await trial.told() == []
    ((kind, text),) = await trial.told()
    assert kind == "CERTIFICATE_UNUSABLE"
    assert text.startswith(f"--tls-certificate {certificate} and --tls-key ")
    certificate.write_bytes(old)
    assert await trial.told() == []


def test_a_chain_of_which_a_part_has_ended() -> None:
    """Only the end of the first certificate is told as the end; another one is told as such."""
    day = int(NOON.timestamp())
    expiry = Expiry("--tls-certificate", Path(os.fsdecode(b"\xff")), 0, day, day + DAY_S)
    states = [state_of(expiry, now_s) for now_s in (day - 1, day, day + DAY_S)]
    assert states == [ExpiryState.ENDS_SOON, ExpiryState.PART_ENDED, ExpiryState.EXPIRED]
    text = words_about(expiry, ExpiryState.PART_ENDED, day)
    assert text.startswith("--tls-certificate \\udcff has a certificate beside its first one that")
    assert "expired at 2026-06-01T12:00:00Z" in text
    text = words_about(expiry, ExpiryState.EXPIRED, day + DAY_S)
    assert "expired at 2026-06-02T12:00:00Z" in text


async def test_a_check_that_fails(
    trial: CertificateWatchTrial, caplog: pytest.LogCaptureFixture
) -> None:
    """An error nobody thought of is a line of the log, and the watch goes on."""
    asked = asyncio.Event()

    def failing() -> int:
        asked.set()
        raise RuntimeError("nobody thought of this")

    watch = CertificateWatch((trial.certificates,), trial.alarms, failing)
    running = asyncio.create_task(watch.run())
    await asked.wait()
    assert not running.done()
    running.cancel()
    (record,) = [each for each in caplog.records if each.exc_info]
    assert "has failed; the next one follows" in record.message


async def test_without_certificates_nothing_is_checked() -> None:
    """A process without TLS has no task that wakes up for it."""
    watch = CertificateWatch((None, None), Alarms(lambda: 0), lambda: 0)
    await watch.run()
    assert watch.expiries == []


async def test_files_that_hang(
    trial: CertificateWatchTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that hang stop nothing, are read by one look alone, and are an alarm until they
    answer; what was read before stays in use."""
    hangs, answers = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []
    stat = Path.stat

    def hanging(path: Path) -> os.stat_result:
        threads.append(threading.current_thread())
        hangs.set()
        answers.wait()
        return stat(path)

    before = trial.certificates.contents
    trial.watch = trial.watching(read_limit_ms=0)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", hanging)
        assert await trial.told() == []
        hangs.wait()
        ((kind, text),) = await trial.told()
        assert kind == "CERTIFICATE_UNUSABLE"
        assert "reading them has not come to an end within 0 ms" in text
        # The process ends without waiting for it.
        assert [each.daemon for each in threads] == [True]
        assert trial.certificates.contents == before
        assert trial.certificates.texts.key == before.key
        trial.renew((NOON, NOON + datetime.timedelta(days=365)))
        answers.set()
    while await trial.told() != [] or trial.certificates.contents == before:
        pass
    assert trial.certificates.problem == ""
