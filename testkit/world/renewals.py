"""Certificates that are renewed while replicas run: well, badly, or too late.

One replica at a time gets files that are of no use, or that prove something else. What a replica
has read before stays in use, and one that nobody accepts any more is like one that is cut off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple
from unittest import mock

from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from testkit.world.encryption import (
    ENDED,
    ENDS_SOON,
    NOT_YET,
    OTHER_AUTHORITY,
    OUR_AUTHORITY,
    PEERS,
    PURPOSES,
    EncryptedFiles,
    PemPair,
    Period,
    authority_pem,
    issue,
    names_for,
    rsa_key,
)
from testkit.world.schedule import NS_PER_MS
from viewstamp.certificates import certificate_watch
from viewstamp.certificates.pem_files import FILE_BYTES_MAX

if TYPE_CHECKING:
    from collections import Counter

    from testkit.world.replica import WorldReplica
    from testkit.world.world import World

_EVERY_MS: Final = (200, 1_500)
_LASTS_MS: Final = (100, 2_500)
# Runs are too short for the product's two seconds between two looks at the files.
_CHECK_INTERVAL_MS: Final = 300
RENEWED: Final = "certificate: {}"

Names = tuple[str, ...]


class Renewal(NamedTuple):
    """What a replica gets in place of its certificate, made for the names that are due."""

    what: str
    make: Callable[[Names], PemPair]


def _good(names: Names) -> PemPair:
    return issue(names, rsa_key("second"))


def _with_another(valid: Period) -> Callable[[Names], PemPair]:
    """Return a chain that has a certificate of this time behind its first one."""

    def make(names: Names) -> PemPair:
        first, behind = _good(names), issue((), rsa_key("first"), valid=valid)
        return PemPair(first.chain + behind.chain, first.key)

    return make


def _half(names: Names) -> PemPair:
    return PemPair(_good(names).chain, issue(names, rsa_key("first")).key)


def _too_large(names: Names) -> PemPair:
    chain, key = _good(names)
    return PemPair(chain + b"#" * FILE_BYTES_MAX, key)


RENEWALS: Final[tuple[Renewal, ...]] = (
    Renewal("renewed", _good),
    Renewal("half renewed", _half),
    Renewal("expired", lambda names: issue(names, rsa_key("second"), valid=ENDED)),
    Renewal("chain partly expired", _with_another(ENDED)),
    Renewal("chain ends soon", _with_another(ENDS_SOON)),
    Renewal("chain not valid yet", _with_another(NOT_YET)),
    Renewal("of other names", lambda names: issue(("replica-9.viewstamp",), rsa_key("second"))),
    Renewal("without names", lambda names: issue((), rsa_key("second"))),
    Renewal("by others", lambda n: issue(n, rsa_key("second"), authority=OTHER_AUTHORITY)),
    Renewal("rubbish", lambda names: PemPair(b"rubbish", b"rubbish")),
    Renewal("too large", _too_large),
    Renewal("empty", lambda names: PemPair(b"", b"")),
    Renewal("a key of another kind", lambda n: issue(n, ed25519.Ed25519PrivateKey.generate())),
    Renewal("of a rare curve", lambda n: issue(n, ec.generate_private_key(ec.SECP256K1()))),
    Renewal(
        "of an unknown curve", lambda n: issue(n, ec.generate_private_key(ec.BrainpoolP256R1()))
    ),
)


@contextmanager
def frequent_looks() -> Iterator[None]:
    """Have coordinators look at their files so often that a run has many looks."""
    with mock.patch.object(certificate_watch, "CHECK_INTERVAL_MS", _CHECK_INTERVAL_MS):
        yield


class Renewals:
    """Replaces files of one replica after another, until it is told to end."""

    def __init__(self, world: World, counts: Counter[str]) -> None:
        self._world = world
        self._counts = counts
        self._random = Random(f"renewals {world.seed}")
        self._files: EncryptedFiles | None = None
        self._replicas: list[WorldReplica] = []

    def begin(self, files: EncryptedFiles, replicas: list[WorldReplica]) -> None:
        """Replace the first files after a while."""
        self._files, self._replicas = files, replicas
        self._later(_EVERY_MS, self._renew)

    def end(self) -> None:
        """Give every replica good files, and replace none any more."""
        files, self._files = self._files, None
        if files is not None:
            for replica in self._replicas:
                _make_good(files, replica)

    def _later(self, within_ms: tuple[int, int], do: Callable[[], None]) -> None:
        delay_ns = self._random.randint(*within_ms) * NS_PER_MS
        self._world.schedule.after(delay_ns, do)

    def _renew(self) -> None:
        if self._files is None:
            return
        replica = self._random.choice(self._replicas)
        purpose, renewal = self._random.choice(PURPOSES), self._random.choice(RENEWALS)
        names = tuple(names_for(purpose, replica.number, replica.name))
        self._note(replica, f"{purpose}: {renewal.what}")
        replica.has_bad_certificates = True
        self._files.put(purpose, replica.number, renewal.make(names))
        if purpose == PEERS and self._random.getrandbits(1):
            both = authority_pem(OTHER_AUTHORITY) + authority_pem(OUR_AUTHORITY)
            self._files.put_authority(replica.number, both)
        self._later(_LASTS_MS, lambda: self._restore(replica))

    def _restore(self, replica: WorldReplica) -> None:
        if self._files is not None:
            self._note(replica, "good again")
            _make_good(self._files, replica)
            self._later(_EVERY_MS, self._renew)

    def _note(self, replica: WorldReplica, what: str) -> None:
        self._world.schedule.note(f"r{replica.number}", RENEWED.format(what))
        self._counts[RENEWED.format(what)] += 1


def _make_good(files: EncryptedFiles, replica: WorldReplica) -> None:
    files.provide(replica.number, replica.name)
    replica.has_bad_certificates = False
