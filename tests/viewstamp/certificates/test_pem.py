"""Times and names of certificates, read from their encoding."""

from __future__ import annotations

import datetime
import itertools
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.coordinator.peers.certificates import Authority
from viewstamp.certificates.pem import certificates_in, first_key

TIMES = (
    datetime.datetime(1970, 1, 1),
    datetime.datetime(1999, 12, 31, 23, 59, 59),
    datetime.datetime(2026, 2, 28, 1, 2, 3),
    datetime.datetime(2049, 12, 31, 23, 59, 59),
    datetime.datetime(2050, 1, 1),
    datetime.datetime(9999, 12, 31, 23, 59, 59),
)


@pytest.mark.parametrize(("begins", "ends"), list(itertools.pairwise(TIMES)))
def test_times_and_names(
    tmp_path: Path, begins: datetime.datetime, ends: datetime.datetime
) -> None:
    """What is read is what another library reads, in both encodings of times."""
    utc = (begins.replace(tzinfo=datetime.UTC), ends.replace(tzinfo=datetime.UTC))
    authority = Authority.create(tmp_path / "authority")
    pem = authority.issue("replica", valid=utc).certificate.read_bytes()
    (found,) = certificates_in(pem)
    other = x509.load_pem_x509_certificate(pem)
    assert found.begins_s == other.not_valid_before_utc.timestamp()
    assert found.ends_s == other.not_valid_after_utc.timestamp()
    (signer,) = certificates_in(authority.path.read_bytes())
    assert found.issuer == signer.subject == signer.issuer
    assert found.subject != found.issuer


def test_each_certificate_of_a_file_is_found(tmp_path: Path) -> None:
    """A chain and a bundle have several, with any text between them."""
    authority = Authority.create(tmp_path / "authority")
    one, two = (authority.issue(name).certificate.read_bytes() for name in ("one", "two"))
    found = certificates_in(b"# the first\n" + one + b"\n# the second\r\n" + two)
    assert [each.subject[-3:] for each in found] == [b"one", b"two"]


def test_what_is_damaged_is_refused(tmp_path: Path) -> None:
    """A file without a certificate, or with one that is cut off anywhere, is a ValueError."""
    authority = Authority.create(tmp_path / "authority").certificate
    encoded = authority.public_bytes(serialization.Encoding.DER)
    cases = [b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\n%%\n-----END CERTIFICATE-----"]
    for size_bytes in (0, 1, 3, 20, 60, len(encoded) - 1):
        cases.append(ssl.DER_cert_to_PEM_cert(encoded[:size_bytes]).encode())
    for case in cases:
        with pytest.raises(ValueError):
            certificates_in(case)


def test_a_key_for_one_scheme_of_signatures(tmp_path: Path) -> None:
    """An RSA key that is for PSS alone is told from one for all schemes; the first key counts."""
    authority = Authority.create(tmp_path / "authority")
    pem = authority.issue("one", key=rsa.generate_private_key(65_537, 2_048)).certificate
    rest = authority.path.read_bytes()
    assert first_key(pem.read_bytes() + rest) == "RSA"
    assert first_key(rest) == "EC P-256"
    encoded = ssl.PEM_cert_to_DER_cert(pem.read_text())
    any_scheme, pss = bytes.fromhex("2a864886f70d010101"), bytes.fromhex("2a864886f70d01010a")
    assert encoded.count(any_scheme) == 1
    changed = ssl.DER_cert_to_PEM_cert(encoded.replace(any_scheme, pss))
    assert first_key(changed.encode()) == "RSA-PSS"
