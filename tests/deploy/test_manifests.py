"""Each rendered overlay is checked: schemas, order, probes, security, and flags that agree."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import latest_version

import coordinator.app.config
from coordinator.gateway.server import LIVENESS, READINESS
from services.runtime import server as service_server
from tests.deploy.pod import (
    CLUSTER_ID,
    FOREIGN_GROUPS,
    KUBERNETES_MIN,
    LONE,
    NAMESPACE,
    OVERLAYS,
    REPLICATED,
    ROOT,
    SIDECARS,
    Key,
    Object,
    arguments,
    containers,
    flag,
    module,
    mounts,
    overlay,
    pod_spec,
    settings,
    volume_at,
)
from tests.deploy.pod import coordinator as coordinator_of
from viewstamp.limits import COMMAND_DEADLINE_MS, UNIX_SOCKET_PATH_BYTES_MAX
from viewstamp.routing import SERVICE_NAMES

PORT = 7400
PEER_PORT = 7410
HEALTH_PORTS = {"users": 7421, "streams": 7422, "consumer-groups": 7423, "coordinator": 7420}
METRICS_PORTS = {"users": 7431, "streams": 7432, "consumer-groups": 7433, "coordinator": 7430}
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LABELS = {"app.kubernetes.io/name": "viewstamp", "app.kubernetes.io/component": "replica"}


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> dict[Key, Object]:
    """The objects of each overlay in turn."""
    return overlay(request.param)


@pytest.mark.parametrize("version", [KUBERNETES_MIN, latest_version()])
def test_objects_conform_to_the_schemas(objects: dict[Key, Object], version: str) -> None:
    """Each object is valid, without unknown fields, for the oldest and the newest Kubernetes."""
    for found in (*objects.values(), *overlay("namespace").values()):
        if found["apiVersion"].partition("/")[0] not in FOREIGN_GROUPS:
            kubernetes_validate.validate(found, version, strict=True)


def test_schema_check_sees_a_misspelt_field() -> None:
    """The schema check refuses a planted unknown field, so the check proves something."""
    objects = overlay("local")
    coordinator_of(objects)["imagePullPolice"] = "Always"

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            objects["StatefulSet", "viewstamp"], KUBERNETES_MIN, strict=True
        )


def test_objects_are_those_expected(objects: dict[Key, Object]) -> None:
    """An overlay holds these objects, never a secret, and never the namespace, with which an
    operator would delete the volumes."""
    assert objects.keys() >= {
        ("ServiceAccount", "viewstamp"),
        ("ConfigMap", settings(objects)["metadata"]["name"]),
        ("NetworkPolicy", "viewstamp"),
        ("PodDisruptionBudget", "viewstamp"),
        ("Service", "viewstamp"),
        ("Service", "viewstamp-headless"),
        ("StatefulSet", "viewstamp"),
    }
    assert not {"Secret", "Namespace"} & {kind for kind, _ in objects}


def test_sidecars_start_in_stage_order(objects: dict[Key, Object]) -> None:
    """The domain services are native sidecars, started in stage order before the coordinator."""
    sidecars = pod_spec(objects)["initContainers"]

    assert [container["name"] for container in sidecars] == list(SIDECARS)
    assert [container["restartPolicy"] for container in sidecars] == ["Always"] * len(SIDECARS)
    assert coordinator_of(objects)["name"] == "coordinator"


def test_probes_are_calls_of_the_kubelet(objects: dict[Key, Object]) -> None:
    """Each probe asks the port for health of its own container, by a name that it answers to.

    No probe is a process, and startup and liveness need no quorum, no service and no coordinator.
    """
    assert (LIVENESS, READINESS) == (service_server.LIVENESS, service_server.READINESS)
    for container in containers(objects):
        port = HEALTH_PORTS[container["name"]]
        asked = {name: one["grpc"] for name, one in container.items() if name.endswith("Probe")}
        wanted = {"startupProbe": LIVENESS, "livenessProbe": LIVENESS}
        if container["name"] == "coordinator":
            wanted["readinessProbe"] = READINESS

        assert flag(container, "health-listen") == f"0.0.0.0:{port}"
        assert asked == {name: {"port": port, "service": known} for name, known in wanted.items()}


def test_ports_of_a_pod_differ(objects: dict[Key, Object]) -> None:
    """The containers of a pod share one network, so each listens on ports of its own."""
    listening = re.compile(r"--[a-z-]*listen=0\.0\.0\.0:(\d+)")
    ports = [
        found[1]
        for container in containers(objects)
        for argument in container["args"]
        if (found := listening.fullmatch(argument))
    ]

    assert len(ports) == len(set(ports)) >= len(HEALTH_PORTS)


def test_images_are_one_pinned_release(objects: dict[Key, Object]) -> None:
    """All containers run one image, of the version that this tree builds."""
    (image,) = {container["image"] for container in containers(objects)}

    assert image.rpartition("/")[2] == f"viewstamp:{VERSION}"


def test_coordinator_accepts_its_flags(objects: dict[Key, Object]) -> None:
    """The coordinator's own parser takes the arguments, and they name each sidecar's socket."""
    replicas = objects["StatefulSet", "viewstamp"]["spec"]["replicas"]
    sockets = {
        module(container).removeprefix("services."): flag(container, "listen")
        for container in pod_spec(objects)["initContainers"]
    }
    assert tuple(sockets) == SERVICE_NAMES
    for replica in range(replicas):
        config = coordinator.app.config.parse(arguments(coordinator_of(objects), replica))

        assert config.services == sockets
        assert (config.replica_id, config.replica_count) == (replica, replicas)


def test_replicas_find_each_other() -> None:
    """Each pod gets the cluster's id, the addresses of the others, and its own address."""
    objects = overlay(REPLICATED)
    headless = objects["Service", "viewstamp-headless"]
    names = [f"viewstamp-{replica}.{headless['metadata']['name']}" for replica in range(3)]
    ports = {port["name"]: port["port"] for port in headless["spec"]["ports"]}
    assert ports == {"grpc": PORT, "peers": PEER_PORT}
    for replica, name in enumerate(names):
        config = coordinator.app.config.parse(arguments(coordinator_of(objects), replica))

        assert config.cluster_id == bytes.fromhex(CLUSTER_ID)
        assert config.advertise == f"{name}.{NAMESPACE}.svc:{PORT}"
        assert config.peers is not None
        assert config.peers.listen == f"0.0.0.0:{PEER_PORT}"
        assert config.peers.addresses == {
            other: f"{names[other]}:{PEER_PORT}" for other in range(3) if other != replica
        }


def test_replicas_prove_who_they_are() -> None:
    """Between replicas there is mutual TLS, whose files lie in a secret of their own."""
    container = coordinator_of(overlay(REPLICATED))
    peers = coordinator.app.config.parse(arguments(container, 0)).peers

    assert peers is not None
    assert peers.tls is not None
    for path in (peers.tls.certificate, peers.tls.key, peers.tls.authority):
        assert volume_at(container, str(path)) == "peer-tls"


def test_flags_point_into_volumes(objects: dict[Key, Object]) -> None:
    """Durable data lies on the claim, secrets in a secret, and sockets in shared memory."""
    container = coordinator_of(objects)
    config = coordinator.app.config.parse(arguments(container, 0))

    assert volume_at(container, str(config.data_directory)) == "data"
    assert str(config.data_directory) not in mounts(container)
    assert volume_at(container, str(config.cluster_key)) == "cluster-key"
    for path in (config.tls_certificate, config.tls_key):
        assert path is None or volume_at(container, str(path)) == "tls"
    for sidecar in pod_spec(objects)["initContainers"]:
        socket = flag(sidecar, "listen").removeprefix("unix:")
        assert volume_at(sidecar, socket) == volume_at(container, socket) == "sockets"
        assert len(socket) <= UNIX_SOCKET_PATH_BYTES_MAX


def test_cluster_key_reaches_only_those_who_need_it(objects: dict[Key, Object]) -> None:
    """The key is mounted read-only, at the path that a flag names, and nowhere else."""
    for container in containers(objects):
        named = any(arg.startswith("--cluster-key=") for arg in container["args"])
        mounted = [m for m in container["volumeMounts"] if m["name"] == "cluster-key"]

        assert bool(mounted) == named, container["name"]
        assert all(mount["readOnly"] for mount in mounted)
        if named:
            assert volume_at(container, flag(container, "cluster-key")) == "cluster-key"


def test_volumes_are_used(objects: dict[Key, Object]) -> None:
    """Sockets live in memory, and every volume and claim is mounted somewhere."""
    pod, stateful_set = pod_spec(objects), objects["StatefulSet", "viewstamp"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claims = {claim["metadata"]["name"] for claim in stateful_set["volumeClaimTemplates"]}
    used = {name for container in containers(objects) for name in mounts(container).values()}

    assert volumes["sockets"]["emptyDir"]["medium"] == "Memory"
    assert used == claims | volumes.keys()


@pytest.mark.parametrize("name", LONE)
def test_one_port_is_named_everywhere(name: str) -> None:
    """Flag, container port, services and network policy name one port, and no other."""
    objects = overlay(name)
    ports = [port for container in containers(objects) for port in container.get("ports", [])]
    policy = objects["NetworkPolicy", "viewstamp"]["spec"]

    assert flag(coordinator_of(objects), "listen") == f"0.0.0.0:{PORT}"
    assert ports == [{"name": "grpc", "containerPort": PORT, "protocol": "TCP"}]
    assert policy["ingress"] == [{"ports": [{"port": PORT, "protocol": "TCP"}]}]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    for service in ("viewstamp", "viewstamp-headless"):
        (port,) = objects["Service", service]["spec"]["ports"]
        assert (port["port"], port["targetPort"]) == (PORT, "grpc")


@pytest.mark.parametrize(
    ("name", "protocol"), [("local", "kubernetes.io/h2c"), ("production", "https")]
)
def test_services_name_their_protocol(name: str, protocol: str) -> None:
    """Services tell meshes and gateways whether the port speaks TLS."""
    objects = overlay(name)
    services = [found for (kind, _), found in objects.items() if kind == "Service"]

    assert [s["spec"]["ports"][0]["appProtocol"] for s in services] == [protocol] * 2


def test_selectors_find_the_pod(objects: dict[Key, Object]) -> None:
    """Every selector of the pod uses labels that the pod has and that never change."""
    stateful_set = objects["StatefulSet", "viewstamp"]["spec"]
    selectors = [
        stateful_set["selector"]["matchLabels"],
        objects["NetworkPolicy", "viewstamp"]["spec"]["podSelector"]["matchLabels"],
        objects["PodDisruptionBudget", "viewstamp"]["spec"]["selector"]["matchLabels"],
        objects["Service", "viewstamp"]["spec"]["selector"],
        objects["Service", "viewstamp-headless"]["spec"]["selector"],
    ]

    assert stateful_set["template"]["metadata"]["labels"] == LABELS
    assert selectors == [LABELS] * 5
    assert stateful_set["volumeClaimTemplates"][0]["metadata"]["labels"] == LABELS


def test_namespace_holds_pods_to_the_restricted_standard() -> None:
    """The namespace enforces the strictest standard, and denies all flows that no policy names."""
    objects = overlay("namespace")
    namespace = objects["Namespace", NAMESPACE]["metadata"]

    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert objects["NetworkPolicy", "default-deny"]["spec"] == {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
    }


def test_the_policy_of_replicas_watches_both_ways_to_change_them() -> None:
    """The number of replicas is held where manifests are applied and where somebody scales."""
    objects = overlay("namespace")
    policy = objects["ValidatingAdmissionPolicy", "viewstamp-replica-count"]
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    binding = objects["ValidatingAdmissionPolicyBinding", "viewstamp-replica-count"]["spec"]

    assert rule["resources"] == ["statefulsets", "statefulsets/scale"]
    assert rule["operations"] == ["UPDATE"]
    assert binding == {"policyName": "viewstamp-replica-count", "validationActions": ["Deny"]}
    # A founded cluster keeps its number, one whose members change loses one pod at a time, and that
    # they change is never taken back.
    first, second = policy["spec"]["validations"]
    assert [each["name"] for each in policy["spec"]["variables"]] == [
        *("before", "wanted", "changes", "stays", "possible")
    ]
    assert first["expression"] == (
        "variables.wanted == variables.before || variables.wanted == 0 || variables.before == 0"
        " || variables.possible"
    )
    assert second["expression"] == "!variables.changes || variables.stays"
    # Objects without a namespace: it would be an error to give them one.
    assert "namespace" not in policy["metadata"]


def test_objects_lie_in_the_namespace(objects: dict[Key, Object]) -> None:
    """Every object of an overlay lies in the namespace that is made apart from it."""
    assert {found["metadata"]["namespace"] for found in objects.values()} == {NAMESPACE}


def test_no_patch_moves_a_container() -> None:
    """JSON patches address containers and claims by position, and say first whose it is."""
    patched = 0
    for path in sorted((ROOT / "deploy").rglob("*.yaml")):
        operations = next(yaml.safe_load_all(path.read_text())) if _is_source(path) else None
        if isinstance(operations, list):
            tested = {one["path"] for one in operations if one["op"] == "test"}
            for one in operations:
                found = re.match(r".*(?:ontainers|Templates)/\d+(?=/)", one["path"])
                if found:
                    patched += 1
                    names = {f"{found[0]}/name", f"{found[0]}/metadata/name"}
                    assert names & tested, f"{path.name}: {one['path']}"
    assert patched > 10


def _is_source(path: Path) -> bool:
    return not {"chart", "rendered"} & set(path.relative_to(ROOT / "deploy").parts)


def test_busy_services_are_not_killed(objects: dict[Key, Object]) -> None:
    """A container is killed later than its longest command.

    A batch on a service's event loop delays its probe. The probe's limit is far longer than the
    wait for any command.
    """
    spec = pod_spec(objects)
    containers = {
        one["name"]: one for one in (*spec["containers"], *spec.get("initContainers", ()))
    }
    for name in SIDECARS:
        probe = containers[name]["livenessProbe"]
        assert probe["failureThreshold"] * probe["periodSeconds"] * 1000 >= 20 * COMMAND_DEADLINE_MS
