"""Each rendered overlay is checked: schemas, order, probes, security, and flags that agree."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import latest_version

import coordinator.app.config
from coordinator.gateway.server import LIVENESS, READINESS
from services.runtime import probe
from services.runtime import server as service_server
from tests.deploy.kustomize import Key, Object, containers
from tests.deploy.pod import (
    CLUSTER_ID,
    KUBERNETES_MIN,
    LONE,
    NAMESPACE,
    OVERLAYS,
    REPLICATED,
    ROOT,
    SIDECARS,
    arguments,
    flag,
    module,
    mounts,
    overlay,
    pod_spec,
    volume_at,
)
from tests.deploy.pod import coordinator as coordinator_of
from viewstamp.limits import COMMAND_DEADLINE_MS, UNIX_SOCKET_PATH_BYTES_MAX
from viewstamp.routing import SERVICE_NAMES

PORT = 7400
PEER_PORT = 7410
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
LABELS = {"app.kubernetes.io/name": "viewstamp", "app.kubernetes.io/component": "replica"}


@pytest.fixture(params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> dict[Key, Object]:
    """The objects of each overlay in turn."""
    return overlay(request.param)


@pytest.mark.parametrize("version", [KUBERNETES_MIN, latest_version()])
def test_objects_conform_to_the_schemas(objects: dict[Key, Object], version: str) -> None:
    """Each object is valid, without unknown fields, for the oldest and the newest Kubernetes."""
    for found in objects.values():
        kubernetes_validate.validate(found, version, strict=True)


def test_schema_check_sees_a_misspelt_field() -> None:
    """The schema check refuses a planted unknown field, so the check proves something."""
    objects = overlay("local")
    coordinator_of(objects)["imagePullPolice"] = "Always"

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(objects["StatefulSet", "viewstamp"], "1.29", strict=True)


def test_objects_are_those_expected(objects: dict[Key, Object]) -> None:
    """An overlay holds exactly these objects, with any number of replicas, and never a secret."""
    assert set(objects) == {
        ("Namespace", "viewstamp"),
        ("ServiceAccount", "viewstamp"),
        ("NetworkPolicy", "viewstamp"),
        ("PodDisruptionBudget", "viewstamp"),
        ("Service", "viewstamp"),
        ("Service", "viewstamp-headless"),
        ("StatefulSet", "viewstamp"),
    }


def test_sidecars_start_in_stage_order(objects: dict[Key, Object]) -> None:
    """The domain services are native sidecars, started in stage order before the coordinator."""
    sidecars = pod_spec(objects)["initContainers"]

    assert [container["name"] for container in sidecars] == list(SIDECARS)
    assert [container["restartPolicy"] for container in sidecars] == ["Always"] * len(SIDECARS)
    assert coordinator_of(objects)["name"] == "coordinator"


def test_probes_ask_for_the_names_that_the_processes_answer_to(objects: dict[Key, Object]) -> None:
    """Startup and liveness never depend on readiness, which needs the coordinator."""
    assert (LIVENESS, READINESS) == (service_server.LIVENESS, service_server.READINESS)
    for container in containers(objects):
        asked = [_service_of(container[name]) for name in PROBES]

        assert asked == [LIVENESS, LIVENESS, READINESS], container["name"]


def _service_of(settings: Object) -> str:
    service: str = (
        settings["grpc"]["service"] if "grpc" in settings else _probe_arguments(settings).service
    )
    return service


def _probe_arguments(settings: Object) -> Any:
    """Return an exec probe's arguments, parsed by the probe itself."""
    python, option, name, *arguments = settings["exec"]["command"]
    assert (python, option, name) == ("python", "-m", "services.runtime.probe")
    return probe.parser().parse_args(arguments)


def test_exec_probes_reach_where_the_container_listens(objects: dict[Key, Object]) -> None:
    """A probe asks the very address that its container is told to listen on."""
    for container in containers(objects):
        listen = flag(container, "listen").replace("0.0.0.0", "127.0.0.1")
        for settings in (container[name] for name in PROBES):
            target = (
                f"127.0.0.1:{settings['grpc']['port']}"
                if "grpc" in settings
                else _probe_arguments(settings).target
            )

            assert target == listen, container["name"]


def test_probes_end_before_the_kubelet_cuts_them(objects: dict[Key, Object]) -> None:
    """An exec probe gives up by itself, with a reason, before Kubernetes kills it without one."""
    for container in containers(objects):
        for settings in (container[name] for name in PROBES):
            if "exec" in settings:
                limit_ms = settings["timeoutSeconds"] * 1000

                assert _probe_arguments(settings).timeout_ms < limit_ms, container["name"]


def test_tls_and_probes_agree() -> None:
    """The coordinator has Kubernetes' own probes, which speak no TLS, only without TLS."""
    plain = coordinator_of(overlay("local"))
    secured = coordinator_of(overlay("production"))
    authority = _probe_arguments(secured["livenessProbe"]).ca_certificate

    assert all("grpc" in plain[name] for name in PROBES)
    assert all("exec" in secured[name] and "grpc" not in secured[name] for name in PROBES)
    assert volume_at(secured, str(authority)) == "tls"


def test_containers_are_confined(objects: dict[Key, Object]) -> None:
    """Every container runs as one numeric user who is not root, without further privileges."""
    pod = pod_spec(objects)

    assert pod["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "runAsGroup": 10001,
        "fsGroup": 10001,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    for container in containers(objects):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, container["name"]
    assert pod["automountServiceAccountToken"] is False
    assert objects["ServiceAccount", "viewstamp"]["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()


def test_images_are_one_pinned_release(objects: dict[Key, Object]) -> None:
    """All containers run one image, of the version that this tree builds."""
    (image,) = {container["image"] for container in containers(objects)}

    assert image.rpartition("/")[2] == f"viewstamp:{VERSION}"


def test_memory_is_requested_whole(objects: dict[Key, Object]) -> None:
    """Memory limits equal the requests, and each container asks for processor time."""
    for container in containers(objects):
        resources = container["resources"]

        assert resources["limits"] == {"memory": resources["requests"]["memory"]}
        assert resources["requests"]["cpu"]


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


def test_replicas_fail_one_by_one() -> None:
    """No two replicas share a node, and no voluntary disruption takes a majority."""
    objects = overlay(REPLICATED)
    affinity = pod_spec(objects)["affinity"]["podAntiAffinity"]
    (rule,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    (spread,) = pod_spec(objects)["topologySpreadConstraints"]
    replicas = objects["StatefulSet", "viewstamp"]["spec"]["replicas"]
    disrupted = objects["PodDisruptionBudget", "viewstamp"]["spec"]["maxUnavailable"]

    assert rule == {
        "labelSelector": {"matchLabels": LABELS},
        "topologyKey": "kubernetes.io/hostname",
    }
    assert spread["labelSelector"] == {"matchLabels": LABELS}
    assert replicas - disrupted > replicas // 2


def test_replicas_speak_to_each_other_alone() -> None:
    """The peers' port is open to replicas, and they reach nothing else but name servers."""
    objects = overlay(REPLICATED)
    policy = objects["NetworkPolicy", "viewstamp"]["spec"]
    pods = [{"podSelector": {"matchLabels": LABELS}}]
    names = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]

    assert policy["ingress"] == [
        {"ports": [{"port": PORT, "protocol": "TCP"}]},
        {"from": pods, "ports": [{"port": PEER_PORT, "protocol": "TCP"}]},
    ]
    assert policy["egress"] == [
        {"to": pods, "ports": [{"port": port, "protocol": "TCP"} for port in (PEER_PORT, PORT)]},
        {"ports": names},
    ]


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


def test_volumes_are_what_they_must_be(objects: dict[Key, Object]) -> None:
    """Sockets live in memory, only the owner reads secrets, and data is claimed and retained."""
    pod, stateful_set = pod_spec(objects), objects["StatefulSet", "viewstamp"]["spec"]
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    claims = {claim["metadata"]["name"] for claim in stateful_set["volumeClaimTemplates"]}
    used = {name for container in containers(objects) for name in mounts(container).values()}

    assert volumes["sockets"]["emptyDir"]["medium"] == "Memory"
    assert {v["secret"]["defaultMode"] for v in volumes.values() if "secret" in v} == {0o400}
    assert used == claims | volumes.keys()
    assert stateful_set["persistentVolumeClaimRetentionPolicy"] == {
        "whenDeleted": "Retain",
        "whenScaled": "Retain",
    }


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


def test_objects_carry_the_recommended_labels(objects: dict[Key, Object]) -> None:
    """Each object but the namespace has labels for its name, its whole, and its version."""
    for (kind, _), found in objects.items():
        labels = found["metadata"]["labels"]

        assert labels["app.kubernetes.io/part-of"] == "viewstamp"
        if kind != "Namespace":
            assert labels | LABELS == labels
            assert labels["app.kubernetes.io/version"] == VERSION


def test_namespace_holds_pods_to_the_restricted_standard(objects: dict[Key, Object]) -> None:
    """The namespace enforces the strictest standard, and all other objects lie in it."""
    namespace = objects["Namespace", "viewstamp"]["metadata"]

    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for (kind, _), found in objects.items():
        assert kind == "Namespace" or found["metadata"]["namespace"] == "viewstamp"


def test_replica_is_rolled_and_disrupted_one_at_a_time(objects: dict[Key, Object]) -> None:
    """The set rolls, starts in parallel behind a headless service, and lets nodes be drained."""
    spec = objects["StatefulSet", "viewstamp"]["spec"]
    headless = objects["Service", "viewstamp-headless"]["spec"]

    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    assert spec["serviceName"] == "viewstamp-headless"
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    assert objects["PodDisruptionBudget", "viewstamp"]["spec"]["maxUnavailable"] == 1
    assert pod_spec(objects)["terminationGracePeriodSeconds"] >= 60


def test_no_patch_moves_a_container(objects: dict[Key, Object]) -> None:
    """JSON patches address the coordinator by position, and say so with a test first."""
    by_position = {}
    for path in sorted((ROOT / "deploy" / "components").rglob("*.json")):
        first, *rest = json.loads(path.read_text())
        if any("/containers/0" in operation["path"] for operation in (first, *rest)):
            by_position[path.name] = first["op"], first.get("value")

    assert by_position
    assert set(by_position.values()) == {("test", "coordinator")}, by_position


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
