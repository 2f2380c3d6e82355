"""TLS in a world: an authority, what it signs, and the files from which each replica takes it.

The programs encrypt as they ship. Nothing of a run depends on what the ciphers make of its bytes,
as long as every message has one length in all runs. So keys are of RSA, whose signatures do not
vary in length, and all certificates have numbers of one length. OpenSSL asks the real clock
whether a certificate is valid, and the programs ask the clock of the world. So those that have to
be good are good for a century.

The files are real, because OpenSSL reads some of them by itself. The run is in a directory of its
own, and their names are relative to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from coordinator.peers.tls import certificate_name

_KEY_BITS: Final = 2_048
_KEY_EXPONENT: Final = 65_537
_SERIAL_NUMBER: Final = 1 << 40
CLIENTS: Final = "clients"
PEERS: Final = "peers"
PURPOSES: Final = (CLIENTS, PEERS)
_FOLDER: Final = Path("certificates")

Period: TypeAlias = tuple[datetime, datetime]
_BEGUN: Final = datetime(2020, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(2120, 1, 1, tzinfo=UTC)
ALWAYS: Final[Period] = (_BEGUN, _LAST)
# A world begins with the year 2026, and real clocks are later.
ENDED: Final[Period] = (_BEGUN, datetime(2025, 12, 1, tzinfo=UTC))
ENDS_SOON: Final[Period] = (_BEGUN, datetime(2026, 1, 15, tzinfo=UTC))
NOT_YET: Final[Period] = (datetime(2100, 1, 1, tzinfo=UTC), _LAST)

Key: TypeAlias = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


class PemPair(NamedTuple):
    """A PEM chain, and the PEM key of its first certificate."""

    chain: bytes
    key: bytes


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    """Return the key of that name, the same for as long as this program runs."""
    return rsa.generate_private_key(_KEY_EXPONENT, _KEY_BITS)


@cache
def authority_pem(name: str) -> bytes:
    """Return the certificate of an authority."""
    key = rsa_key(name)
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    builder = _builder(name, name, key, ALWAYS).add_extension(constraints, critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


OUR_AUTHORITY: Final = "authority of this world"
OTHER_AUTHORITY: Final = "authority of others"


def issue(
    names: Sequence[str],
    key: Key,
    *,
    authority: str = OUR_AUTHORITY,
    valid: Period = ALWAYS,
) -> PemPair:
    """Return a certificate for names of hosts, and its key."""
    builder = _builder("replica", authority, key, valid)
    if names:
        named = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
        builder = builder.add_extension(named, critical=False)
    certificate = builder.sign(rsa_key(authority), hashes.SHA256())
    encoded_key = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return PemPair(certificate.public_bytes(serialization.Encoding.PEM), encoded_key)


def _builder(subject: str, issuer: str, key: Key, valid: Period) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(_SERIAL_NUMBER)
        .not_valid_before(valid[0])
        .not_valid_after(valid[1])
    )


def names_for(purpose: str, replica: int, host: str) -> Sequence[str]:
    """Return what the certificate of a replica has to name."""
    return [host if purpose == CLIENTS else certificate_name(replica)]


class EncryptedFiles:
    """The files of certificates of all replicas, below the directory of the run."""

    def __init__(self) -> None:
        _FOLDER.mkdir()

    def provide(self, replica: int, host: str) -> None:
        """Write what a replica needs."""
        for purpose in PURPOSES:
            self.put(purpose, replica, issue(names_for(purpose, replica, host), rsa_key("first")))
        self.put_authority(replica, authority_pem(OUR_AUTHORITY))

    def put(self, purpose: str, replica: int, pair: PemPair) -> None:
        """Replace chain and key, one after the other."""
        self._write(f"{purpose}-{replica}.pem", pair.chain)
        self._write(f"{purpose}-{replica}.key", pair.key)

    def put_authority(self, replica: int, certificates: bytes) -> None:
        """Replace whom a replica trusts."""
        self._write(f"authority-{replica}.pem", certificates)

    def _write(self, name: str, content: bytes) -> None:
        temporary = _FOLDER / "new"
        temporary.write_bytes(content)
        temporary.replace(_FOLDER / name)


def flags_of(replica: int, *, has_peers: bool) -> list[str]:
    """Return the flags with which a coordinator is told of its files."""
    result = [
        f"--tls-certificate={_FOLDER}/{CLIENTS}-{replica}.pem",
        f"--tls-key={_FOLDER}/{CLIENTS}-{replica}.key",
    ]
    if has_peers:
        result += [
            f"--peer-tls-certificate={_FOLDER}/{PEERS}-{replica}.pem",
            f"--peer-tls-key={_FOLDER}/{PEERS}-{replica}.key",
            f"--peer-tls-ca={_FOLDER}/authority-{replica}.pem",
        ]
    return result
