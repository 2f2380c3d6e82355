"""Whether services in pods of their own meet what operators expect of them.

A check may raise LookupError, ValueError or AssertionError where what it looks for is not there.
"""

from __future__ import annotations

from typing import Final

from tests.deploy.manifest_checks import (
    FLOWS,
    Objects,
    is_renewed,
    patience_s,
    policies_of,
    spec_of,
)
from tests.deploy.pod import SIDECARS, Object, coordinator, flag, module, volume_at
from viewstamp.certificates.proven_names import coordinator_name, service_name
from viewstamp.routing import SERVICE_NAMES

_JOBS: Final = ("viewstamp-archive", "viewstamp-analysis")
SERVICE_PORTS: Final = (7441, 7442, 7443)
# Those that are there only where services have pods of their own.
FLOWS_APART: Final[dict[str, set[tuple[str, str, tuple[int, ...]]]]] = {
    name: flows for name, flows in FLOWS.items() if name not in _JOBS
} | {
    "viewstamp-services": {("ingress", "replica", SERVICE_PORTS)},
    "viewstamp-to-services": {
        ("egress", "services", SERVICE_PORTS),
        ("egress", "anybody", (53, 53)),
    },
    "viewstamp-services-metrics": {("ingress", "namespace monitoring", (7431, 7432, 7433))},
}


def names_all_flows_apart(objects: Objects) -> bool:
    """Return whether services in pods of their own have the flows that are named, and no other."""
    return policies_of(objects) == FLOWS_APART


def _services(objects: Objects) -> list[Object]:
    found: list[Object] = spec_of(objects, "StatefulSet", "viewstamp-services")["template"]["spec"][
        "containers"
    ]
    return found


def has_services_apart(objects: Objects) -> bool:
    """Return whether each replica has a pod of services, and knows them by that pod's name."""
    spec, own = (
        spec_of(objects, "StatefulSet", name) for name in ("viewstamp-services", "viewstamp")
    )
    headless = spec_of(objects, "Service", "viewstamp-services")
    ports = {each["targetPort"]: each["port"] for each in headless["ports"]}
    found = coordinator(objects)
    targets = {
        f"--service={module(one).removeprefix('services.')}="
        f"viewstamp-services-$(REPLICA_ID).viewstamp-services:{ports[one['ports'][0]['name']]}"
        for one in _services(objects)
    }
    return (
        spec["replicas"] == own["replicas"]
        and spec["podManagementPolicy"] == "Parallel"
        and spec["serviceName"] == "viewstamp-services"
        and (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
        and targets == {arg for arg in found["args"] if arg.startswith("--service=")}
        and "initContainers" not in own["template"]["spec"]
        and tuple(one["name"] for one in _services(objects)) == SIDECARS
    )


def services_speak_tls(objects: Objects) -> bool:
    """Return whether both ends have a certificate, each its own, and nobody allows clear text."""
    ends = [(coordinator(objects), "service-tls-", "coordinator-tls")]
    ends += [(one, "tls-", "service-tls") for one in _services(objects)]
    return all(
        volume_at(one, flag(one, f"{prefix}{file}")) == volume
        for one, prefix, volume in ends
        for file in ("certificate", "key", "ca")
    ) and not any("plaintext" in arg for one, _, _ in ends for arg in one["args"])


def services_are_probed(objects: Objects) -> bool:
    """Return whether pods of services are restarted patiently, and leave one at a time."""
    budget = spec_of(objects, "PodDisruptionBudget", "viewstamp-services")
    (rule,) = spec_of(objects, "StatefulSet", "viewstamp-services")["template"]["spec"]["affinity"][
        "podAntiAffinity"
    ]["requiredDuringSchedulingIgnoredDuringExecution"]
    return (
        budget["maxUnavailable"] == 1
        and budget["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        and rule["topologyKey"] == "kubernetes.io/hostname"
        and all(
            patience_s(one["startupProbe"]) >= 120
            and patience_s(one["livenessProbe"]) >= 300
            and "readinessProbe" not in one
            for one in _services(objects)
        )
    )


def proves_services(objects: Objects) -> bool:
    """Return whether certificates name each coordinator and each service of each replica."""
    coordinators, services = (
        spec_of(objects, "Certificate", name)
        for name in ("viewstamp-coordinator-tls", "viewstamp-service-tls")
    )
    replicas = range(spec_of(objects, "StatefulSet")["replicas"])
    due = {service_name(service, replica) for service in SERVICE_NAMES for replica in replicas}
    return (
        {coordinator_name(replica) for replica in replicas} <= set(coordinators["dnsNames"])
        and due <= set(services["dnsNames"])
        and "client auth" in coordinators["usages"]
        and "server auth" in services["usages"]
        and all(
            is_renewed(each)
            and each["issuerRef"]["name"] == "viewstamp-service-authority"
            and ("Issuer", "viewstamp-service-authority") in objects
            for each in (coordinators, services)
        )
    )
