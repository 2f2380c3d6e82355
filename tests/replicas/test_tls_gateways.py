"""Replicas that serve with TLS: a backup forwards no call, and callers go where it points."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import viewstamp
from tests.deploy.certificates import self_signed
from tests.viewstamp.cli.conftest import CommandLine
from viewstamp.cluster import LocalReplicas

pytestmark = pytest.mark.long


def encryption(directory: Path) -> tuple[Path, list[str]]:
    """Write a certificate; return its authority and the coordinator's flags for it."""
    authority, key, chain = (directory / name for name in ("ca.crt", "tls.key", "tls.crt"))
    private, certificate = self_signed(authority)
    key.write_bytes(private)
    chain.write_bytes(certificate)
    return authority, ["--tls-certificate", str(chain), "--tls-key", str(key)]


async def test_each_replica_leads_callers_to_the_primary(tmp_path: Path) -> None:
    """Commands and the library work at every replica alone, with one authority for all."""
    authority, flags = encryption(tmp_path)
    data = tmp_path / "data"
    async with LocalReplicas(data, 3, "127.0.0.1:0", coordinator_arguments=flags) as cluster:
        password = cluster.root_password_path
        for number, address in enumerate(cluster.addresses):
            home = tmp_path / str(number)
            home.mkdir()
            run = CommandLine(address, home)
            for command in (
                ("login", "--tls-ca", str(authority), "--password-file", str(password)),
                ("stream", "create", f"stream-{number}"),
                ("cluster", "step-down"),
                ("stream", "delete", f"stream-{number}", "--yes"),
                ("logout",),
            ):
                said = await asyncio.to_thread(run, *command)
                assert said.code == 0, (address, command, said.err)
            secret = password.read_text().strip()
            async with await viewstamp.connect(
                address, username="root", password=secret, tls_ca=authority
            ) as client:
                await client.streams.create(f"orders-{number}")


def test_the_login_line_of_a_cluster_with_tls_works_as_it_stands(tmp_path: Path) -> None:
    """`viewstamp up` prints a login command that names a self-signed certificate as authority."""
    _, flags = encryption(tmp_path)
    up = (sys.executable, "-m", "viewstamp.cli", "up", "--listen", "127.0.0.1:0")
    environment = {**os.environ, "HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen(
        (*up, "--data-directory", tmp_path / "data", "--", *flags),
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as running:
        assert running.stdout is not None
        try:
            line = next(each for each in running.stdout if each.startswith("log in: "))
            command = line.removeprefix("log in: ").strip()
            assert command.startswith("viewstamp ")
            words = command.replace("viewstamp", f"{sys.executable} -m viewstamp.cli", 1)
            done = subprocess.run(
                words, check=False, shell=True, env=environment, capture_output=True
            )
            assert done.returncode == 0, done.stderr
        finally:
            running.send_signal(signal.SIGTERM)
            running.stdout.close()
