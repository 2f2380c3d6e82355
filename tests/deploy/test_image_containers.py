"""The images as containers and pods of podman: built by `make test-image`, and run as root."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.podman_containers import (
    ANALYTICS,
    ARCHIVES,
    CLIENT,
    CONFINED,
    SERVER,
    USER,
    ImageClient,
    Podman,
    facts,
    place,
)
from tests.deploy.podman_pods import (
    ADDRESSES,
    CLIENT_PORT,
    NETWORK,
    REPLICAS,
    host_names,
    name_of,
    three_pods,
)
from tools.image.__main__ import LOCKS
from tools.image.image_archive import read_archive
from tools.image.scan import findings
from viewstamp.cluster.preflight import free_address

pytestmark = pytest.mark.image
# An image may grow by what its libraries grow, and not by a compiler.
SIZES_MAX_MB = {"viewstamp": 180, "viewstamp-client": 110, "viewstamp-analytics": 1_200}
CONTAINER = "viewstamp-test-one"
# Writes below the root, and returns the error's number (30: the file system is read-only).
WRITE = "import sys\ntry: open('/opt/x', 'w')\nexcept OSError as e: sys.exit(e.errno)"
READ_ONLY_FILE_SYSTEM = 30
TEMPORARY = ("--tmpfs", "/tmp")


@pytest.fixture(name="directory")
def _directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="viewstamp-image-") as directory:
        # The images' user passes through it to what it may see.
        Path(directory).chmod(0o755)
        yield Path(directory)


@pytest.fixture(name="podman")
def _podman(directory: Path) -> Podman:
    """podman, with the images from the archives: an operator would load the same."""
    podman = Podman(directory)
    for name in LOCKS:
        podman.must("load", "--quiet", "--input", str(ARCHIVES / f"{name}.tar"))
    return podman


@pytest.mark.parametrize("name", LOCKS)
def test_images_are_clean_and_small(name: str) -> None:
    """No rule refuses a file of an image, and an image is not larger than it has to be."""
    image = read_archive(ARCHIVES / f"{name}.tar")

    assert findings(name, image) == []
    assert image.size_bytes < SIZES_MAX_MB[name] * 1_000_000


@pytest.mark.parametrize("name", LOCKS)
def test_bills_name_what_locks_pin(name: str) -> None:
    """Every Python package of an image has checksums from the lock, apart from our own."""
    document = json.loads((ARCHIVES / f"{name}.cdx.json").read_text())
    listed = document["components"]
    python = {one["name"]: one for one in listed if one.get("purl", "").startswith("pkg:pypi/")}

    assert {name for name, one in python.items() if "externalReferences" not in one} == {
        "viewstamp"
    }
    assert "libc6" in {one["name"] for one in listed}
    assert {"grpcio", "protobuf", "typer"} <= python.keys()


def test_one_replica_serves_the_client_image(podman: Podman, directory: Path) -> None:
    """A container without any right serves a cluster, and the client image changes it."""
    data, address = place(directory / "data"), free_address("127.0.0.1:0")
    start = ("run", "--detach", "--name", CONTAINER, "--network", "host", *CONFINED, *TEMPORARY)
    up = ("viewstamp", "up", "--data-directory", "/var/lib/viewstamp/data", "--listen", address)
    cluster = ("--env", f"VIEWSTAMP_ADDRESS={address}")
    seen = ("--network", "host", "--volume", f"{data}:/data:ro", *cluster)
    client = ImageClient(podman, directory / "home", *seen)
    try:
        podman.must(*start, "--volume", f"{data}:/var/lib/viewstamp", SERVER, *up)
        password = ("--username", "root", "--password-file", "/data/data/root_password")
        client.wait("login", *password)
        client.must("stream", "create", "orders")

        assert "orders" in client.must("stream", "list")
        _assert_confined(podman, CONTAINER)
        podman.must("stop", "--time", "60", CONTAINER)
        assert podman.must("inspect", CONTAINER, "--format", "{{.State.ExitCode}}") == "0"
    finally:
        podman("rm", "--force", CONTAINER)


def _assert_confined(podman: Podman, container: str) -> None:
    """A process is not root, has no capabilities, gets none, and cannot write below the root."""
    allowed = facts(podman, container)

    assert set(allowed["Uid"].split()) == set(allowed["Gid"].split()) == {str(USER)}
    assert {allowed[f"Cap{kind}"].strip("0") for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {
        ""
    }
    assert allowed["NoNewPrivs"] == "1"
    written = podman("exec", container, "python", "-c", WRITE)
    assert written.returncode == READ_ONLY_FILE_SYSTEM


@pytest.mark.parametrize("image", [SERVER, CLIENT])
def test_there_is_no_shell(podman: Podman, image: str) -> None:
    """Nothing in these images interprets commands, apart from Python itself."""
    for shell in ("sh", "bash", "dash"):
        assert podman("run", "--rm", *CONFINED, image, shell, "-c", "true").returncode == 127


def test_the_client_image_starts_no_servers(podman: Podman) -> None:
    """The client image has none of the servers' libraries, and says which extra has them."""
    said = podman("run", "--rm", *CONFINED, CLIENT, "viewstamp", "up")

    assert said.returncode == 2 and "viewstamp[server]" in said.stderr


def test_the_analytics_image_counts_with_spark(podman: Podman) -> None:
    """Java and Spark start below a read-only root, and workers run Python of the image."""
    program = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[2]').getOrCreate()\n"
        "print('sum', spark.sparkContext.parallelize(range(100)).map(lambda n: 2 * n).sum())"
    )
    home = ("--env", "HOME=/tmp", *TEMPORARY)

    said = podman("run", "--rm", *CONFINED, *home, ANALYTICS, "python", "-c", program)

    assert said.stdout.splitlines()[-1:] == ["sum 9900"], said.stderr


def test_executors_start_java(podman: Podman) -> None:
    """`executor` becomes Spark's program for executors, which looks for the driver it is told."""
    variables = {
        "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@127.0.0.1:9",
        "SPARK_EXECUTOR_ID": "1",
        "SPARK_EXECUTOR_CORES": "1",
        "SPARK_EXECUTOR_MEMORY": "512m",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_EXECUTOR_POD_IP": "127.0.0.1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_EXECUTOR_POD_NAME": "executor-1",
    }
    given = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]

    said = podman("run", "--rm", *CONFINED, *TEMPORARY, *given, ANALYTICS, "executor")

    assert said.returncode != 0
    assert "Failed to connect to /127.0.0.1:9" in said.stdout + said.stderr


def test_rendered_pods_found_a_cluster_and_survive_their_primary(
    podman: Podman, directory: Path
) -> None:
    """Three pods of the rendered manifests, with TLS, lose a primary by SIGKILL but no stream."""
    (directory / "pods").mkdir()
    with three_pods(podman, directory / "pods") as pods:
        flags = _client_flags(pods.authority, pods.volume(0, "data"))
        client = ImageClient(podman, directory / "home", *flags)
        password = ("--username", "root", "--password-file", "/first/data/root_password")
        client.wait("login", *password)
        client.must("stream", "create", "before")
        primary = _status(client)["primary"]

        pods.kill(primary)
        client.wait("stream", "create", "after")

        assert _status(client)["primary"] != primary
        pods.start(primary)
        assert _streams(client) == ["after", "before"]
        assert [_has_password(pods.volume(one, "data")) for one in range(REPLICAS)] == [
            True,
            False,
            False,
        ]
        for replica in range(REPLICAS):
            _assert_confined(podman, f"{name_of(replica)}-coordinator")


def _client_flags(authority: Path, first: Path) -> list[str]:
    """Return podman's flags for a client of the three pods."""
    known = [
        word
        for replica, address in enumerate(ADDRESSES)
        for name in host_names(replica)
        for word in ("--add-host", f"{name}:{address}")
    ]
    cluster = ",".join(f"{host_names(one)[1]}:{CLIENT_PORT}" for one in range(REPLICAS))
    files = ("--volume", f"{authority}:/ca.crt:ro", "--volume", f"{first}:/first:ro")
    settings = ("--env", f"VIEWSTAMP_ADDRESS={cluster}", "--env", "VIEWSTAMP_TLS_CA=/ca.crt")
    return ["--network", NETWORK, *known, *files, *settings]


def _status(client: ImageClient) -> dict[str, Any]:
    """Return the cluster's status, and the primary among its replicas."""
    status: dict[str, Any] = json.loads(client.wait("status", "--json"))
    (primary,) = [one for one in status["replicas"] if one["role"] == "primary"]
    return {**status, "primary": primary["replica_id"]}


def _streams(client: ImageClient) -> list[str]:
    """Return the names of all streams."""
    listed = json.loads(client.wait("stream", "list", "--json"))
    return sorted(one["name"] for one in listed)


def _has_password(data: Path) -> bool:
    return (data / "data" / "root_password").exists()
