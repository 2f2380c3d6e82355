"""Certificates that are renewed in their files while the process runs."""

from __future__ import annotations

import datetime
import logging
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from coordinator.peers.settings import PeerTls
from tests.coordinator.peers.certificates import BEGIN, END, Authority
from viewstamp import grpc_transport
from viewstamp.certificates.pem_files import (
    FILE_BYTES_MAX,
    Certificates,
    PemFiles,
    UnusableFiles,
)
from viewstamp.grpc_transport import TlsTexts

PATH = "/test.Echo/Names"
OPTIONS = (("grpc.ssl_target_name_override", "server"), ("grpc.use_local_subchannel_pool", 1))
PAST = datetime.datetime(2021, 1, 1, tzinfo=datetime.UTC)
EXPIRED = (BEGIN, PAST)
LATER = datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC)


@dataclass
class FolderTrial:
    """A folder as a secret is mounted: the files are reached through a link that is replaced."""

    root: Path
    count: int = 0

    @property
    def files(self) -> PemFiles:
        """The files, by their names that never change."""
        data = self.root / "..data"
        return PemFiles(
            "--peer-tls-certificate", data / "tls.crt", data / "tls.key", data / "ca.crt"
        )

    def put(self, pair: PeerTls, *authorities: Authority) -> None:
        """Replace all three files at once."""
        self.count += 1
        folder = self.root / str(self.count)
        folder.mkdir()
        shutil.copy(pair.certificate, folder / "tls.crt")
        shutil.copy(pair.key, folder / "tls.key")
        bundle = b"".join(each.path.read_bytes() for each in authorities)
        (folder / "ca.crt").write_bytes(bundle)
        new = self.root / "..new"
        new.symlink_to(folder)
        new.replace(self.root / "..data")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority of all."""
    return Authority.create(tmp_path / "authority")


@pytest.fixture
def folder(tmp_path: Path, authority: Authority) -> FolderTrial:
    """A folder with the certificate of `server`."""
    (tmp_path / "mounted").mkdir()
    made = FolderTrial(tmp_path / "mounted")
    made.put(authority.issue("server"), authority)
    return made


@asynccontextmanager
async def served(certificates: Certificates) -> AsyncIterator[int]:
    """Serve one method with the certificates; yield the port."""

    async def answer(_: Any, context: Any) -> bytes:
        return b",".join(context.auth_context()["x509_subject_alternative_name"])

    server = grpc_transport.make_server(())
    handlers: dict[str, Any] = {"Names": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = grpc_transport.add_tls_port(server, "127.0.0.1:0", lambda: certificates.texts)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


def dialled(port: int, pair: PeerTls, *trusted: Authority) -> grpc.aio.Channel:
    """Return a new channel of a caller with a certificate."""
    texts = TlsTexts(
        b"".join(each.path.read_bytes() for each in trusted),
        pair.certificate.read_bytes(),
        pair.key.read_bytes(),
    )
    return grpc_transport.open_channel(f"127.0.0.1:{port}", OPTIONS, texts)


async def asked(channel: grpc.aio.Channel) -> bytes:
    """Return the name by which the server knows the caller. Raises grpc.aio.AioRpcError."""
    call: Any = channel.unary_unary(PATH)
    answer: bytes = await call(b"", timeout=20)
    return answer


async def said(port: int, pair: PeerTls, *trusted: Authority) -> bytes:
    """Ask over a new connection."""
    async with dialled(port, pair, *trusted) as channel:
        return await asked(channel)


async def refused(port: int, pair: PeerTls, *trusted: Authority) -> str:
    """Return why a new connection is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await said(port, pair, *trusted)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return caught.value.details() or ""


async def test_a_renewed_certificate_serves_without_a_restart(
    authority: Authority, folder: FolderTrial
) -> None:
    """After an expired certificate is replaced new connections are accepted."""
    folder.put(authority.issue("server", valid=EXPIRED), authority)
    certificates = Certificates(folder.files)
    caller = authority.issue("caller")
    async with served(certificates) as port:
        assert "certificate has expired" in await refused(port, caller, authority)
        folder.put(authority.issue("server"), authority)
        certificates.take(certificates.look())
        assert await said(port, caller, authority) == b"caller"


async def test_a_connection_outlives_its_certificate(
    authority: Authority, folder: FolderTrial
) -> None:
    """A connection that stands goes on when the next one would be refused."""
    certificates = Certificates(folder.files)
    caller = authority.issue("caller")
    async with served(certificates) as port, dialled(port, caller, authority) as channel:
        assert await asked(channel) == b"caller"
        folder.put(authority.issue("server", valid=EXPIRED), authority)
        certificates.take(certificates.look())
        await refused(port, caller, authority)
        assert await asked(channel) == b"caller"


async def test_an_authority_is_replaced_in_three_steps(
    tmp_path: Path, authority: Authority, folder: FolderTrial
) -> None:
    """With both authorities in the file callers of both are accepted, and later the new one's
    alone."""
    certificates = Certificates(folder.files)
    later = Authority.create(tmp_path / "later")
    old, new = authority.issue("old"), later.issue("new")
    async with served(certificates) as port:
        await refused(port, new, authority)
        folder.put(authority.issue("server"), authority, later)
        certificates.take(certificates.look())
        assert await said(port, old, authority) == b"old"
        assert await said(port, new, authority) == b"new"
        folder.put(later.issue("server"), later)
        certificates.take(certificates.look())
        assert await said(port, new, later) == b"new"
        await refused(port, old, authority, later)


async def test_a_caller_dials_with_what_was_read_last(
    authority: Authority, folder: FolderTrial
) -> None:
    """A new channel has the certificate that the last look has found."""
    certificates = Certificates(folder.files)
    (folder.root / "caller").mkdir()
    calling = FolderTrial(folder.root / "caller")
    calling.put(authority.issue("first"), authority)
    mine = Certificates(calling.files)
    async with served(certificates) as port:
        for name in ("first", "second"):
            calling.put(authority.issue(name), authority)
            mine.take(mine.look())
            address = f"127.0.0.1:{port}"
            async with grpc_transport.open_channel(address, OPTIONS, mine.texts) as channel:
                assert await asked(channel) == name.encode()


def half_a_pair(authority: Authority, files: PemFiles) -> None:
    """The certificate is new, and the key is the old one."""
    shutil.copy(authority.issue("renewed").certificate, files.certificate)


def missing_key(_: Authority, files: PemFiles) -> None:
    """The key is being replaced by another name."""
    files.key.unlink()


def empty_certificate(_: Authority, files: PemFiles) -> None:
    """The certificate was truncated, and is not written yet."""
    files.certificate.write_bytes(b"")


def nonsense_for_authorities(_: Authority, files: PemFiles) -> None:
    """The authorities are no PEM."""
    assert files.authority is not None
    files.authority.write_bytes(b"nonsense")


def large(_: Authority, files: PemFiles) -> None:
    """The certificate has no end."""
    with files.certificate.open("ab") as file:
        file.truncate(FILE_BYTES_MAX + 1)


@pytest.mark.parametrize(
    "harm", [half_a_pair, missing_key, empty_certificate, nonsense_for_authorities, large]
)
async def test_what_does_not_fit_is_not_used(
    authority: Authority, folder: FolderTrial, harm: Any
) -> None:
    """The pair that was read before goes on, the problem is named, and ends with the next pair."""
    certificates = Certificates(folder.files)
    before = certificates.contents
    caller = authority.issue("caller")
    async with served(certificates) as port:
        harm(authority, folder.files)
        for _ in range(2):
            certificates.take(certificates.look())
            assert certificates.problem.startswith("--peer-tls-certificate ")
            assert certificates.contents == before
            assert certificates.texts.certificate == before.certificate
        assert await said(port, caller, authority) == b"caller"
        folder.put(authority.issue("server"), authority)
        certificates.take(certificates.look())
        assert certificates.problem == ""
        assert certificates.contents != before
        assert await said(port, caller, authority) == b"caller"


def test_files_that_are_written_while_they_are_read(
    authority: Authority, folder: FolderTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was checked is used only if it is what was read, so two pairs are never mixed."""
    certificates = Certificates(folder.files)
    before = certificates.contents

    class ReplacingContext(ssl.SSLContext):
        def load_cert_chain(self, *arguments: Any, **options: Any) -> None:
            folder.put(authority.issue("third"), authority)
            super().load_cert_chain(*arguments, **options)

    folder.put(authority.issue("second"), authority)
    with monkeypatch.context() as patched:
        patched.setattr("viewstamp.certificates.pem_files.ssl.SSLContext", ReplacingContext)
        certificates.take(certificates.look())
    assert "being replaced" in certificates.problem
    assert certificates.contents == before
    certificates.take(certificates.look())
    assert certificates.contents.certificate == folder.files.certificate.read_bytes()


def test_a_repair_within_one_tick_of_the_file_system(
    authority: Authority, folder: FolderTrial
) -> None:
    """Files that did not fit are read at each check, since a repair may not show in their times."""
    certificates = Certificates(folder.files)
    pair = authority.issue("server")
    files = folder.files
    shutil.copy(pair.certificate, files.certificate)
    times = files.key.stat()
    certificates.take(certificates.look())
    assert certificates.problem
    files.key.write_bytes(pair.key.read_bytes())
    os.utime(files.key, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert files.key.stat().st_size == times.st_size
    certificates.take(certificates.look())
    assert certificates.problem == ""
    assert certificates.contents.key == pair.key.read_bytes()


def test_unchanged_files_are_not_read_again(
    folder: FolderTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check of files that did not change opens none of them."""
    certificates = Certificates(folder.files)
    with monkeypatch.context() as patched:
        patched.delattr(Path, "open")
        certificates.take(certificates.look())
    assert certificates.problem == ""


def test_a_channel_touches_no_file(folder: FolderTrial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever dials never waits for files, also when they were refused."""
    certificates = Certificates(folder.files)
    folder.files.key.unlink()
    certificates.take(certificates.look())
    assert certificates.problem
    with monkeypatch.context() as patched:
        patched.delattr(Path, "stat")
        assert certificates.texts.key is not None


def test_refused_bytes_are_not_checked_again(
    authority: Authority, folder: FolderTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that do not fit are read at each look, and parsed only if their bytes have changed."""
    certificates = Certificates(folder.files)
    half_a_pair(authority, folder.files)
    certificates.take(certificates.look())
    problem = certificates.problem
    assert problem
    certificates.hangs(7)
    assert "not come to an end within 7 ms" in certificates.problem
    with monkeypatch.context() as patched:
        patched.delattr(ssl, "SSLContext")
        certificates.take(certificates.look())
    assert certificates.problem == problem


@pytest.mark.parametrize(
    "key",
    [
        rsa.generate_private_key(65_537, 2_048),
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP384R1()),
    ],
    ids=["RSA", "EC P-256", "EC P-384"],
)
async def test_keys_that_grpc_takes(authority: Authority, folder: FolderTrial, key: Any) -> None:
    """Both sides of a connection can have a certificate with a key of any kind that is taken."""
    folder.put(authority.issue("server", key=key), authority)
    async with served(Certificates(folder.files)) as port:
        assert await said(port, authority.issue("caller", key=key), authority) == b"caller"


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (ec.generate_private_key(ec.SECP224R1()), "EC P-224"),
        (ec.generate_private_key(ec.SECP521R1()), "EC P-521"),
        (ec.generate_private_key(ec.SECP256K1()), "EC secp256k1"),
        (ec.generate_private_key(ec.BrainpoolP256R1()), "EC on the curve 2b2403030208010107"),
        (ed25519.Ed25519PrivateKey.generate(), "Ed25519"),
        (ed448.Ed448PrivateKey.generate(), "Ed448"),
    ],
)
async def test_keys_that_grpc_refuses(
    authority: Authority, folder: FolderTrial, key: Any, kind: str
) -> None:
    """A key that OpenSSL takes and gRPC's connections refuse is a problem that names its kind, and
    the pair that was read before serves."""
    certificates = Certificates(folder.files)
    before = certificates.contents
    folder.put(authority.issue("server", key=key), authority)
    certificates.take(certificates.look())
    right = "and gRPC needs RSA, EC P-256 or EC P-384"
    assert f"{folder.files.certificate} is {kind}, {right}" in certificates.problem
    assert certificates.contents == before
    with pytest.raises(UnusableFiles, match=f"is {kind}, {right}"):
        Certificates(folder.files)


def test_a_path_that_is_no_text(authority: Authority, folder: FolderTrial) -> None:
    """A path of any bytes is told in a form that an alarm can hold."""
    odd = folder.files.certificate.with_name(os.fsdecode(b"\xff.crt"))
    shutil.copy(folder.files.certificate, odd)
    certificates = Certificates(replace(folder.files, certificate=odd))
    odd.write_bytes(b"")
    certificates.take(certificates.look())
    assert "\\udcff.crt" in certificates.problem
    assert certificates.problem.isprintable()
    certificates.problem.encode()


@pytest.mark.parametrize("label", [b"X509 CERTIFICATE", b"TRUSTED CERTIFICATE"])
def test_other_labels_of_certificates(folder: FolderTrial, label: bytes) -> None:
    """What OpenSSL takes for a certificate by another label has a time of its end, too."""
    files = folder.files
    assert files.authority is not None
    before = Certificates(files).expiries
    for path in (files.certificate, files.authority):
        path.write_bytes(path.read_bytes().replace(b" CERTIFICATE", b" " + label))
    assert Certificates(files).expiries == before


def test_times_that_cannot_be_read(
    folder: FolderTrial, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They cost the warning before the end, and a line of the log, and not the files."""
    unknown = MagicMock(side_effect=ValueError("a time has another form"))
    monkeypatch.setattr("viewstamp.certificates.pem_files.certificates_in", unknown)
    assert Certificates(folder.files).expiries == ()
    told = [each.message for each in caplog.records if each.levelno == logging.WARNING]
    assert told == ["the times of a certificate cannot be read, so nothing tells when it ends"] * 2


@pytest.mark.parametrize("is_pipe", [True, False])
def test_only_regular_files_are_opened(folder: FolderTrial, *, is_pipe: bool) -> None:
    """A pipe, at which a reader waits for ever, and a device without end are refused by name."""
    key = folder.files.key
    certificates = Certificates(folder.files)
    key.unlink()
    if is_pipe:
        os.mkfifo(key)
    else:
        key.symlink_to("/dev/zero")
    certificates.take(certificates.look())
    assert f"{key} is no regular file" in certificates.problem
    with pytest.raises(UnusableFiles, match="is no regular file"):
        Certificates(folder.files)


def test_a_locked_key_asks_nobody(authority: Authority, folder: FolderTrial) -> None:
    """A key with a password is refused; nobody is asked for the password at a terminal."""
    pair = authority.issue("locked")
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    folder.put(pair, authority)
    with pytest.raises(UnusableFiles, match="--peer-tls-key"):
        Certificates(folder.files)


def test_the_expiry_of_chain_and_authority(tmp_path: Path, folder: FolderTrial) -> None:
    """Of a chain the first end counts, and of several authorities the one that signed it."""
    years = [datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2031, 2032, 2033)]
    signer = Authority.create(tmp_path / "signer", (BEGIN, years[2]))
    gone = Authority.create(tmp_path / "gone", (BEGIN, PAST))
    other = Authority.create(tmp_path / "other", name="another")
    folder.put(signer.issue("server", valid=(BEGIN, years[0])), gone, signer, other)
    chain, authority = Certificates(folder.files).expiries
    assert (chain.flag, chain.path) == ("--peer-tls-certificate", folder.files.certificate)
    assert (chain.begins_s, chain.ends_s) == (BEGIN.timestamp(), years[0].timestamp())
    assert (authority.flag, authority.ends_s) == ("--peer-tls-ca", years[2].timestamp())
    with folder.files.certificate.open("ab") as file:
        file.write(gone.path.read_bytes())
    chain, _ = Certificates(folder.files).expiries
    assert (chain.ends_s, chain.expires_s) == (PAST.timestamp(), years[0].timestamp())
    assert chain.begins_s == BEGIN.timestamp()


def test_the_beginning_of_a_chain(authority: Authority, folder: FolderTrial) -> None:
    """A chain is valid once the last of its certificates is."""
    late = authority.issue("late", valid=(LATER, END)).certificate
    with folder.files.certificate.open("ab") as file:
        file.write(late.read_bytes())
    chain, _ = Certificates(folder.files).expiries
    assert (chain.begins_s, chain.ends_s) == (LATER.timestamp(), END.timestamp())


async def test_callers_without_certificates(authority: Authority, folder: FolderTrial) -> None:
    """Without an authority a server asks nobody for a certificate."""
    certificates = Certificates(replace(folder.files, authority=None))
    assert [each.flag for each in certificates.expiries] == ["--peer-tls-certificate"]
    trusting = TlsTexts(authority.path.read_bytes())
    async with (
        served(certificates) as port,
        grpc_transport.open_channel(f"127.0.0.1:{port}", OPTIONS, trusting) as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asked(channel)
        # The call came to its handler, which finds no name.
        assert caught.value.code() is grpc.StatusCode.UNKNOWN
