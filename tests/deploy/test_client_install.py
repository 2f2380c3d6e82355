"""`pip install viewstamp` installs client and command line, and needs no server's library."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.deploy.client_install import ClientInstall, install_client, metadata_of
from viewstamp.cluster import LocalCluster

LIBRARIES = {
    *("annotated-doc", "blake3", "googleapis-common-protos", "grpcio", "grpcio-status", "hpack"),
    *("markdown-it-py", "mdurl", "protobuf", "pygments", "pyyaml", "rich", "shellingham", "typer"),
    "typing-extensions",
}
ABSENT = """
aiosqlite argon2 cryptography grpc_channelz grpc_health grpc_reflection opentelemetry pandas
prometheus_client pyarrow pydantic pyspark testkit tests uvloop zstandard
""".split()

LIBRARY_PROGRAM = """
import asyncio, sys, viewstamp

async def main():
    root = {"username": "root", "password": sys.argv[2]}
    async with await viewstamp.connect(sys.argv[1], **root) as client:
        print([stream.name async for stream in client.streams.list()])

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> ClientInstall:
    """Return the wheel, installed without extras."""
    return install_client(tmp_path_factory.mktemp("client"))


def test_the_wheel_holds_what_users_install(client: ClientInstall) -> None:
    """The wheel has the five packages, lacks what tests share, and is refused by indexes."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(client.wheel).namelist()}

    assert {name for name in names if not name.endswith(".dist-info")} == {
        *("viewstamp", "coordinator", "services", "past", "analytics")
    }
    assert "Private :: Do Not Upload" in (metadata_of(client.wheel).get_all("Classifier") or [])


def test_the_client_needs_few_libraries(client: ClientInstall) -> None:
    """Without extras nothing of the servers or of the analysis is installed."""
    assert client.libraries == LIBRARIES
    program = f"import importlib.util as i; print([n for n in {ABSENT!r} if i.find_spec(n)])"
    assert client.run("python", "-c", program).stdout.strip() == "[]"


def test_help_and_version_need_no_extra(client: ClientInstall) -> None:
    """The program says its version, lists its commands, and explains those that ask a cluster."""
    assert client.run("viewstamp", "--version").stdout.strip() == "viewstamp 0.1.0"
    for arguments in ([], ["status"], ["stream"], ["snapshot"], ["cluster"], ["audit"], ["import"]):
        said = client.run("viewstamp", *arguments, "--help")
        assert said.returncode == 0 and "Usage" in said.stdout, said.stderr


def test_up_names_the_extra_that_it_needs(client: ClientInstall) -> None:
    """Without the servers' libraries nothing is started; the error says what to install."""
    said = client.run("viewstamp", "up")
    told = client.run("viewstamp", "up", "--json")

    assert said.returncode == told.returncode == 2
    assert "pip install 'viewstamp[server]'" in said.stderr
    assert said.stderr.startswith("error: EXTRA_MISSING: this command needs opentelemetry")
    assert json.loads(told.stderr)["error"]["reason"] == "EXTRA_MISSING"


@pytest.mark.long
async def test_commands_and_library_reach_a_cluster(client: ClientInstall, tmp_path: Path) -> None:
    """Commands and the library work; a verified download names the extra it needs."""
    async with LocalCluster(tmp_path / "data", "127.0.0.1:0") as cluster:
        password = cluster.root_password_path
        here = {"VIEWSTAMP_ADDRESS": cluster.address}
        for command in (
            f"login --username root --password-file {password}",
            "stream create orders",
            "status",
            "snapshot create --wait",
            "snapshot show 1",
        ):
            said = client.run("viewstamp", *command.split(), **here)
            assert said.returncode == 0, said.stderr
        listed = client.run("viewstamp", "stream", "list", **here).stdout
        download = f"snapshot download 1 --output {tmp_path / 'copy'}"
        downloaded = client.run("viewstamp", *download.split(), **here)
        arguments = ("-c", LIBRARY_PROGRAM, cluster.address, password.read_text().strip())
        program = client.run("python", *arguments)

    assert "orders" in listed
    assert program.stdout.strip() == "['orders']", program.stderr
    assert downloaded.returncode == 2 and "pip install 'viewstamp[server]'" in downloaded.stderr
    assert not (tmp_path / "copy" / "layers").exists()
