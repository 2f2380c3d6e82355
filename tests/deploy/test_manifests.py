"""What every rendered overlay must say: schemas, order, probes, security, and agreeing flags."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import kubernetes_validate
import pytest
from kubernetes_validate.utils import latest_version

import coordinator.config
from coordinator.gateway.server import LIVENESS, READINESS
from services.runtime import probe
from services.runtime import server as service_server
from tests.deploy.kustomize import Key, Object, containers
from tests.deploy.pod import (
    KUBERNETES_MIN,
    OVERLAYS,
    ROOT,
    SIDECARS,
    flag,
    module,
    mounts,
    overlay,
    pod_spec,
    volume_at,
)
from tests.deploy.pod import coordinator as coordinator_of
from viewstamp.limits import UNIX_SOCKET_PATH_BYTES_MAX

PORT = 7400
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
    """The schema check refuses a planted unknown field, so that it proves something."""
    objects = overlay("local")
    coordinator_of(objects)["imagePullPolice"] = "Always"

    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(objects["StatefulSet", "viewstamp"], "1.29", strict=True)


def test_objects_are_those_expected(objects: dict[Key, Object]) -> None:
    """An overlay holds exactly the objects of one replica, and never a secret."""
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
    assert [container["restartPolicy"] for container in sidecars] == ["Always"] * 3
    assert coordinator_of(objects)["name"] == "coordinator"


def test_probes_ask_for_the_names_that_the_processes_answer_to(objects: dict[Key, Object]) -> None:
    """Starting and living never depend on readiness, which comes only with the coordinator."""
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
    """With TLS no probe is Kubernetes' own, which speaks none; without TLS the coordinator's is."""
    plain = coordinator_of(overlay("local"))
    secured = coordinator_of(overlay("production"))
    authority = _probe_arguments(secured["livenessProbe"]).ca_certificate

    assert all("grpc" in plain[name] for name in PROBES)
    assert all("exec" in secured[name] and "grpc" not in secured[name] for name in PROBES)
    assert volume_at(secured, str(authority)) == "tls"


def test_containers_are_confined(objects: dict[Key, Object]) -> None:
    """Every container runs as one numeric user who is not root, with nothing to spare."""
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
    config = coordinator.config.parse(coordinator_of(objects)["args"])
    sockets = {
        module(container).removeprefix("services."): flag(container, "listen")
        for container in pod_spec(objects)["initContainers"]
    }

    assert config.services == sockets
    assert tuple(sockets) == coordinator.config.SERVICE_NAMES
    assert config.replica_count == objects["StatefulSet", "viewstamp"]["spec"]["replicas"]


def test_flags_point_into_volumes(objects: dict[Key, Object]) -> None:
    """What is durable lies on the claim, what is secret in a secret, sockets in shared memory."""
    config = coordinator.config.parse(coordinator_of(objects)["args"])
    container = coordinator_of(objects)

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
    """The key is mounted, read-only, where a flag names it, and nowhere else."""
    for container in containers(objects):
        named = any(arg.startswith("--cluster-key=") for arg in container["args"])
        mounted = [m for m in container["volumeMounts"] if m["name"] == "cluster-key"]

        assert bool(mounted) == named, container["name"]
        assert all(mount["readOnly"] for mount in mounted)
        if named:
            assert volume_at(container, flag(container, "cluster-key")) == "cluster-key"


def test_volumes_are_what_they_must_be(objects: dict[Key, Object]) -> None:
    """Sockets live in memory, secrets are for their owner alone, data is claimed and retained."""
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


def test_one_port_is_named_everywhere(objects: dict[Key, Object]) -> None:
    """Flag, container port, services and network policy speak of one port, and of no other."""
    ports = [port for container in containers(objects) for port in container.get("ports", [])]
    policy = objects["NetworkPolicy", "viewstamp"]["spec"]

    assert flag(coordinator_of(objects), "listen") == f"0.0.0.0:{PORT}"
    assert ports == [{"name": "grpc", "containerPort": PORT, "protocol": "TCP"}]
    assert policy["ingress"] == [{"ports": [{"port": PORT, "protocol": "TCP"}]}]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert "egress" not in policy
    for name in ("viewstamp", "viewstamp-headless"):
        (port,) = objects["Service", name]["spec"]["ports"]
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
    """Whatever selects the pod does so by labels that it has and that never change."""
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
    """Each object but the namespace says what it is, of what, and in which version."""
    for (kind, _), found in objects.items():
        labels = found["metadata"]["labels"]

        assert labels["app.kubernetes.io/part-of"] == "viewstamp"
        if kind != "Namespace":
            assert labels | LABELS == labels
            assert labels["app.kubernetes.io/version"] == VERSION


def test_namespace_holds_pods_to_the_restricted_standard(objects: dict[Key, Object]) -> None:
    """The namespace enforces the strictest standard, and everything else lies in it."""
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
    for path in sorted((ROOT / "deploy" / "components").rglob("*.json")):
        operations = json.loads(path.read_text())
        by_position = any("/containers/0" in operation["path"] for operation in operations)
        first = operations[0]

        assert not by_position or (first["op"], first["value"]) == ("test", "coordinator"), path
