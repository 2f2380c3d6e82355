"""What a Kubernetes for tests is made of, without starting it: `make test-kubernetes` does."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import tarfile
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from testkit.kubernetes import machine, node_files, scratch_image
from testkit.kubernetes.credentials import Credentials
from testkit.kubernetes.layout import (
    API_SERVICE_ADDRESS,
    CONTROL_PLANE_ADDRESS,
    NODES,
    POD_SUBNET,
    SERVICE_SUBNET,
    KubernetesError,
    program,
)

# The kernel allows names of links so many characters.
LINK_NAME_CHARACTERS_MAX = 15


def test_nodes_share_no_address() -> None:
    """Pods of two nodes, nodes and services have addresses apart from each other."""
    pods = [ipaddress.ip_network(node.pod_subnet) for node in NODES]
    whole, services = ipaddress.ip_network(POD_SUBNET), ipaddress.ip_network(SERVICE_SUBNET)

    assert all(one.subnet_of(whole) for one in pods)  # type: ignore[arg-type]
    assert not any(one.overlaps(other) for one in pods for other in pods if one != other)
    assert not whole.overlaps(services) and ipaddress.ip_address(API_SERVICE_ADDRESS) in services
    assert len({CONTROL_PLANE_ADDRESS, *(node.address for node in NODES)}) == len(NODES) + 1
    assert all(len(node.link) <= LINK_NAME_CHARACTERS_MAX for node in NODES)


def test_servers_are_known_by_their_names(tmp_path: Path) -> None:
    """A certificate of the authority holds for the names that it was made for, and no others."""
    credentials = Credentials(tmp_path)
    credentials.sign("server", "kube-apiserver", names=["kubernetes.default", "10.96.0.1"])
    authority = x509.load_pem_x509_certificate(credentials.authority.read_bytes())
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())

    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["kubernetes.default"]
    assert names.get_values_for_type(x509.IPAddress) == [ipaddress.ip_address("10.96.0.1")]


def test_clients_find_the_server(tmp_path: Path) -> None:
    """A client's file names the server and its own key, which only its owner reads."""
    file = Credentials(tmp_path).client("admin", "admin", "system:masters")
    document = yaml.safe_load(file.read_text())

    assert CONTROL_PLANE_ADDRESS in document["clusters"][0]["cluster"]["server"]
    key = Path(document["users"][0]["user"]["client-key"])
    assert key.stat().st_mode & 0o077 == 0


def test_an_image_of_programs_is_one_that_engines_take(tmp_path: Path) -> None:
    """The configuration names the layer by its checksum, and is named by its own."""
    source = tmp_path / "program"
    source.write_bytes(b"\x7fELF")
    scratch_image.write(tmp_path / "image.tar", "name:1", {"run": source}, ["/bin/run"])
    with tarfile.open(tmp_path / "image.tar") as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]

    (manifest,) = json.loads(files["manifest.json"])
    configuration = files[manifest["Config"]]
    assert manifest["Config"] == f"{hashlib.sha256(configuration).hexdigest()}.json"
    layer = f"sha256:{hashlib.sha256(files['layer.tar']).hexdigest()}"
    assert json.loads(configuration)["rootfs"]["diff_ids"] == [layer]
    assert manifest["RepoTags"] == ["name:1"]


def test_each_node_counts_its_pods_apart(tmp_path: Path) -> None:
    """Kubelets on one machine have control groups of their own, and do not count others' pods."""
    groups = {
        yaml.safe_load(node_files.kubelet(tmp_path, node, tmp_path, tmp_path).read_text())[
            "cgroupRoot"
        ]
        for node in NODES
    }

    assert len(groups) == len(NODES)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the programs is told which packages have them, and strangers to be root."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(KubernetesError, match=r"apt-get install --yes .*etcd-server.*runc"):
        machine.check()
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(KubernetesError, match="as root"):
        machine.check()


def test_programs_that_were_not_built_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the programs of `make kubernetes` the error says how they are made."""
    monkeypatch.delenv("KUBERNETES_PROGRAMS", raising=False)
    with pytest.raises(KubernetesError, match=r"kubelet.*make test-kubernetes"):
        program("kubelet")
