"""Whether rendered objects meet what operators expect of a replicated store.

A check may raise LookupError, ValueError or AssertionError where what it looks for is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from tests.deploy.pod import (
    ROOT,
    SETTINGS,
    SIDECARS,
    Key,
    Object,
    containers,
    coordinator,
    flag,
    pod_spec,
    pod_templates,
    settings,
    volume_at,
)

LABELS: Final = {"app.kubernetes.io/name": "viewstamp", "app.kubernetes.io/component": "replica"}
Objects = dict[Key, Object]
_POLICY: Final = "NetworkPolicy"


def spec_of(objects: Objects, kind: str, name: str = "viewstamp") -> Object:
    """Return the spec of an object."""
    found: Object = objects[kind, name]["spec"]
    return found


def rolls_pod_by_pod(objects: Objects) -> bool:
    """Return whether an odd number of replicas start in parallel and are replaced one by one."""
    spec = spec_of(objects, "StatefulSet")
    return bool(
        spec["replicas"] % 2 == 1
        and spec["serviceName"] == "viewstamp-headless"
        and spec["podManagementPolicy"] == "Parallel"
        and spec["updateStrategy"] == {"type": "RollingUpdate"}
    )


def has_services(objects: Objects) -> bool:
    """Return whether pods have names before they are ready, and clients a service."""
    headless, clients = (
        spec_of(objects, "Service", name) for name in ("viewstamp-headless", "viewstamp")
    )
    ports = [*headless["ports"], *clients["ports"]]
    return (
        (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
        and clients["type"] == "ClusterIP"
        and all(port["name"] == port["targetPort"] for port in ports)
        and all("appProtocol" in port for port in ports if port["name"] == "grpc")
    )


def lets_one_go(objects: Objects) -> bool:
    """Return whether one replica at most leaves for a node that is drained."""
    budget = spec_of(objects, "PodDisruptionBudget")
    return bool(
        budget["maxUnavailable"] == 1
        and budget["selector"]["matchLabels"] == LABELS
        and budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    )


def is_spread(objects: Objects) -> bool:
    """Return whether no two replicas share a node, and zones are used evenly."""
    pod = pod_spec(objects)
    (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (zones,) = pod["topologySpreadConstraints"]
    node = {"labelSelector": {"matchLabels": LABELS}, "topologyKey": "kubernetes.io/hostname"}
    return bool(rule == node) and zones == {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": LABELS},
    }


def patience_s(probe: Object) -> int:
    """Return for how long a process may be silent before the probe has failed."""
    assert probe["timeoutSeconds"] <= probe["periodSeconds"], "probes would pile up"
    patience: int = probe["periodSeconds"] * probe["failureThreshold"]
    return patience


def is_probed_patiently(objects: Objects) -> bool:
    """Return whether probes leave time to recover, and liveness is patient and not readiness."""
    found = coordinator(objects)
    return (
        patience_s(found["startupProbe"]) >= 900
        and patience_s(found["livenessProbe"]) >= 120
        and 10 <= patience_s(found["readinessProbe"]) < patience_s(found["livenessProbe"])
        and found["livenessProbe"]["grpc"]["service"] == "liveness"
        and found["readinessProbe"]["grpc"]["service"] == "readiness"
    )


def leaves_in_order(objects: Objects) -> bool:
    """Return whether a pod that leaves has time to be forgotten, to hand over and to end calls."""
    pause_s: int = coordinator(objects)["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace_s: int = pod_spec(objects)["terminationGracePeriodSeconds"]
    return 5 <= pause_s <= grace_s - 50


def keeps_volumes(objects: Objects) -> bool:
    """Return whether data lies on claims that outlive the set."""
    spec = spec_of(objects, "StatefulSet")
    claims = {claim["metadata"]["name"]: claim["spec"] for claim in spec["volumeClaimTemplates"]}
    return (
        all(claim["accessModes"] == ["ReadWriteOnce"] for claim in claims.values())
        and spec["persistentVolumeClaimRetentionPolicy"]
        == {"whenDeleted": "Retain", "whenScaled": "Retain"}
        and volume_at(coordinator(objects), flag(coordinator(objects), "data-directory")) == "data"
        and "data" in claims
    )


def keeps_copies_apart(objects: Objects) -> bool:
    """Return whether each copy of a snapshot has a volume of its own."""
    found = coordinator(objects)
    prefix = "--snapshot-directory="
    paths = [arg.removeprefix(prefix) for arg in found["args"] if arg.startswith(prefix)]
    claims = {
        claim["metadata"]["name"]
        for claim in spec_of(objects, "StatefulSet")["volumeClaimTemplates"]
    }
    volumes = {volume_at(found, path) for path in paths}
    return len(paths) == 3 and volumes == claims == {"data", "copy-1", "copy-2"}


def is_sized(objects: Objects) -> bool:
    """Return whether memory is requested whole, and processor time has no limit."""
    return all(
        one["resources"]["limits"] == {"memory": one["resources"]["requests"]["memory"]}
        and "cpu" in one["resources"]["requests"]
        for _, template in pod_templates(objects)
        for one in _all_containers(template)
    )


def _all_containers(template: Object) -> list[Object]:
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]


def is_confined(objects: Objects) -> bool:
    """Return whether nothing runs as root, writes to its image, or has a privilege or a token."""
    return objects["ServiceAccount", "viewstamp"]["automountServiceAccountToken"] is False and all(
        _pod_is_confined(template) for _, template in pod_templates(objects)
    )


def _pod_is_confined(template: Object) -> bool:
    pod = template["spec"]
    return (
        pod["securityContext"]
        == {
            "runAsNonRoot": True,
            "runAsUser": 10001,
            "runAsGroup": 10001,
            "fsGroup": 10001,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        and pod["automountServiceAccountToken"] is False
        and pod["enableServiceLinks"] is False
        and not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        and all(
            one["securityContext"]
            == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            for one in _all_containers(template)
        )
    )


# Each flow of a policy: its direction, who may be at the other end, and the ports.
_CLIENTS: Final = ("ingress", "anybody", (7400,))
FLOWS: Final[dict[str, set[tuple[str, str, tuple[int, ...]]]]] = {
    "viewstamp": {_CLIENTS},
    "viewstamp-peers": {
        ("ingress", "replica", (7410,)),
        ("egress", "replica", (7410, 7400)),
        ("egress", "anybody", (53, 53)),
    },
    "viewstamp-metrics": {("ingress", "namespace monitoring", (7430, 7431, 7432, 7433))},
    "viewstamp-archive": {
        ("egress", "replica", (7400,)),
        ("egress", "anybody", (53, 53)),
    },
    "viewstamp-analysis": set(),
}
# Of archives in a store, and of jobs that restore from it.
STORE_FLOWS: Final = {("egress", "anybody", (443,)), ("egress", "anybody", (53, 53))}


def policies_of(objects: Objects) -> dict[str, set[tuple[str, str, tuple[int, ...]]]]:
    """Return the flows of each policy by its name."""
    return {
        name: set(_flows(found["spec"]))
        for (kind, name), found in objects.items()
        if kind == _POLICY
    }


def names_its_flows(objects: Objects) -> bool:
    """Return whether no policy has another flow than those that are named."""
    known = {**FLOWS, "viewstamp-log-archive": STORE_FLOWS}
    return known.items() >= policies_of(objects).items()


def _flows(spec: Object) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for direction, end in (("ingress", "from"), ("egress", "to")):
        for rule in spec.get(direction, ()):
            ports = tuple(port["port"] for port in rule["ports"])
            for peer in rule.get(end, (None,)):
                yield direction, _peer(peer), ports


def _peer(peer: Object | None) -> str:
    if peer is None:
        return "anybody"
    if "namespaceSelector" in peer:
        labels = peer["namespaceSelector"]["matchLabels"]
        return f"namespace {labels['kubernetes.io/metadata.name']}"
    labels = peer["podSelector"]["matchLabels"]
    return str(labels["app.kubernetes.io/component"])


def names_all_flows(objects: Objects) -> bool:
    """Return whether there are the flows that are named, and no other."""
    return policies_of(objects) == FLOWS


def is_closed_by_default(objects: Objects) -> bool:
    """Return whether policies close every pod, in both directions."""
    selected = [
        found["spec"]["podSelector"]
        for (kind, _), found in objects.items()
        if kind == _POLICY and set(found["spec"]["policyTypes"]) == {"Ingress", "Egress"}
    ]
    return all(
        {"matchLabels": template["metadata"]["labels"]} in selected
        for _, template in pod_templates(objects)
    )


def is_scraped(objects: Objects) -> bool:
    """Return whether every process is scraped."""
    spec = spec_of(objects, "PodMonitor")
    scraped = {one["port"] for one in spec["podMetricsEndpoints"]}
    pages = {
        port["name"]
        for one in containers(objects)
        for port in one.get("ports", ())
        if port["containerPort"] == int(flag(one, "metrics-listen").rpartition(":")[2])
    }
    return scraped == pages and len(pages) == 4 and spec["selector"]["matchLabels"] == LABELS


def _alerts(objects: Objects) -> list[Object]:
    return [
        rule for group in spec_of(objects, "PrometheusRule")["groups"] for rule in group["rules"]
    ]


def alerts_have_runbooks(objects: Objects) -> bool:
    """Return whether every alert has a severity and a page that says what to do."""
    alerts = _alerts(objects)
    return bool(alerts) and all(
        (ROOT / rule["annotations"]["runbook"]).is_file()
        and rule["labels"]["severity"] in ("critical", "warning", "info")
        for rule in alerts
    )


def has_alerts_and_dashboard(objects: Objects) -> bool:
    """Return whether alerts and dashboard are those that are tested by themselves."""
    monitoring = ROOT / "deploy" / "monitoring"
    dashboard = objects["ConfigMap", "viewstamp-dashboard"]
    return bool(
        spec_of(objects, "PrometheusRule")
        == yaml.safe_load((monitoring / "alerts.yaml").read_text())
        and dashboard["data"]["viewstamp.json"]
        == (monitoring / "dashboards" / "viewstamp.json").read_text()
        and dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    )


def rolls_out_settings(objects: Objects) -> bool:
    """Return whether a changed setting is rolled out, and every setting is used."""
    config_map = settings(objects)
    name = config_map["metadata"]["name"]
    references = [
        variable["valueFrom"]["configMapKeyRef"]
        for one in containers(objects)
        for variable in one["env"]
        if variable["valueFrom"].get("configMapKeyRef", {}).get("name") == name
    ]
    used = {reference["key"] for reference in references}
    return (
        re.fullmatch(SETTINGS + "-[a-z0-9]{10}", name) is not None
        and used == config_map["data"].keys()
        and all(
            _variables(one) <= {each["name"] for each in one["env"]} for one in containers(objects)
        )
    )


def _variables(container: Object) -> set[str]:
    """Return the variables that arguments name; one that is not set stays as it is written."""
    return set(re.findall(r"\$\((\w+)\)", " ".join(container["args"])))


def keeps_secrets_apart(objects: Objects) -> bool:
    """Return whether secrets are read-only files for the pod alone."""
    volumes = {volume["name"]: volume for volume in pod_spec(objects)["volumes"]}
    secrets = {name: one["secret"] for name, one in volumes.items() if "secret" in one}
    mounted = {
        mount["name"]: mount.get("readOnly", False)
        for one in containers(objects)
        for mount in one["volumeMounts"]
        if mount["name"] in secrets
    }
    return (
        "cluster-key" in secrets
        and all(secret["defaultMode"] == 0o400 for secret in secrets.values())
        and mounted == dict.fromkeys(secrets, True)
    )


def has_native_sidecars(objects: Objects) -> bool:
    """Return whether services are native sidecars, started before the coordinator, in order."""
    sidecars = pod_spec(objects)["initContainers"]
    return [one["name"] for one in sidecars] == list(SIDECARS) and all(
        one["restartPolicy"] == "Always" and patience_s(one["startupProbe"]) >= 120
        for one in sidecars
    )


def knows_who_it_is(objects: Objects) -> bool:
    """Return whether a replica knows its number from its pod, and how many there are."""
    found = coordinator(objects)
    fields = {
        one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"]
        for one in found["env"]
        if "fieldRef" in one["valueFrom"]
    }
    return (
        flag(found, "replica-id") == "$(REPLICA_ID)"
        and fields["REPLICA_ID"] == "metadata.labels['apps.kubernetes.io/pod-index']"
        and flag(found, "replica-count") == str(spec_of(objects, "StatefulSet")["replicas"])
    )


def knows_its_cluster(objects: Objects) -> bool:
    """Return whether replicas know their cluster and each other by name."""
    found = coordinator(objects)
    references = {one["name"]: one["valueFrom"].get("configMapKeyRef") for one in found["env"]}
    peers = [arg for arg in found["args"] if arg.startswith("--peer=")]
    return (
        flag(found, "cluster-id") == "$(CLUSTER_ID)"
        and references["CLUSTER_ID"] == {"name": "viewstamp-cluster", "key": "cluster-id"}
        and len(peers) == spec_of(objects, "StatefulSet")["replicas"]
    )


def is_labelled(objects: Objects) -> bool:
    """Return whether objects have the recommended labels."""
    return all(
        found["metadata"]["labels"].items()
        >= {"app.kubernetes.io/name": "viewstamp", "app.kubernetes.io/part-of": "viewstamp"}.items()
        and found["metadata"]["labels"]["app.kubernetes.io/version"]
        for found in objects.values()
    )


def is_certified(objects: Objects) -> bool:
    """Return whether cert-manager makes each certificate that is mounted, and renews it."""
    mounted = {
        volume["secret"]["secretName"]
        for volume in pod_spec(objects)["volumes"]
        if "secret" in volume
    } - {"viewstamp-cluster-key"}
    made = {
        found["spec"]["secretName"]: found["spec"]
        for (kind, _), found in objects.items()
        if kind == "Certificate"
    }
    return mounted == {"viewstamp-tls", "viewstamp-peer-tls"} and all(
        is_renewed(made[name]) and ("Issuer", made[name]["issuerRef"]["name"]) in objects
        for name in mounted
    )


def is_renewed(certificate: Object) -> bool:
    """Return whether a certificate is renewed before somebody is warned of its end."""
    duration_h, before_h = (
        int(certificate[name].removesuffix("h")) for name in ("duration", "renewBefore")
    )
    # The coordinator warns at a quarter: a renewal that works comes before the warning.
    return (
        duration_h / 4 < before_h < duration_h / 2
        and certificate["privateKey"]["rotationPolicy"] == "Always"
        and (certificate["privateKey"]["algorithm"], certificate["privateKey"]["size"])
        == ("ECDSA", 256)
    )


def proves_replicas(objects: Objects) -> bool:
    """Return whether certificates of replicas name each, and have an authority of their own."""
    names = spec_of(objects, "Certificate", "viewstamp-peer-tls")["dnsNames"]
    usages = set(spec_of(objects, "Certificate", "viewstamp-peer-tls")["usages"])
    replicas = spec_of(objects, "StatefulSet")["replicas"]
    authorities = {
        spec_of(objects, "Certificate", name)["issuerRef"]["name"]
        for name in ("viewstamp-tls", "viewstamp-peer-tls")
    }
    return (
        {f"replica-{replica}.viewstamp" for replica in range(replicas)} <= set(names)
        and {"server auth", "client auth"} <= usages
        and len(authorities) == 2
    )
