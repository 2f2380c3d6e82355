"""What Kubernetes' operators expect of the manifests of a replicated store: a table of checks.

Each item holds for rendered objects or not, and names what can be taken out of them so that it must
fail: a check that bears the loss of what it checks would prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.deploy import apart_checks, job_checks, manifest_checks
from tests.deploy.manifest_checks import Objects
from tests.deploy.pod import APART, LONE, OVERLAYS, REPLICATED, SIDECARS

# Kind and name of an object, and keys, positions and names of items that lead to what is taken out.
Omission = tuple[str | int, ...]
_SET: Final = ("StatefulSet", "viewstamp", "spec")
_POD: Final = (*_SET, "template", "spec")
_COORDINATOR: Final = (*_POD, "containers", "coordinator")
_POLICY: Final = "NetworkPolicy"
_JOB_POD: Final = ("spec", "jobTemplate", "spec", "template", "spec")
_ARCHIVE_POD: Final = ("CronJob", "viewstamp-archive", *_JOB_POD)
_ANALYSIS_POD: Final = ("CronJob", "viewstamp-analysis", *_JOB_POD)


@dataclass(frozen=True, slots=True)
class Item:
    """A numbered demand, whether it holds, what breaks it if taken out, and the overlays."""

    number: int
    says: str
    holds: Callable[[Objects], bool]
    omissions: tuple[Omission, ...]
    overlays: tuple[str, ...] = OVERLAYS


def taken_out(objects: Objects, omission: Omission) -> None:
    """Take out of the objects what an omission names. Raises LookupError if it is not there."""
    kind, name, *path = omission
    key = str(kind), str(name)
    if not path:
        del objects[key]
        return
    place: Any = objects[key]
    for step in path[:-1]:
        place = place[_place(place, step)]
    del place[_place(place, path[-1])]


def _place(whole: Any, step: str | int) -> str | int:
    """Return the place of a key, or of the item of a list that begins so or has that name."""
    if not isinstance(whole, list) or isinstance(step, int):
        return step
    for place, item in enumerate(whole):
        text = item["name"] if isinstance(item, dict) else item
        if text.startswith(step):
            return place
    raise LookupError(f"{step} is not in {whole}")


_FULL: Final = (REPLICATED,)
_APART_SET: Final = ("StatefulSet", "viewstamp-services", "spec")
_APART_POD: Final = (*_APART_SET, "template", "spec")
_APART: Final = (
    Item(
        13,
        "each replica has a pod of services, and knows them by that pod's name",
        apart_checks.has_services_apart,
        (
            (*_APART_SET, "replicas"),
            (*_APART_SET, "podManagementPolicy"),
            (*_APART_POD, "containers", "streams"),
            (*_COORDINATOR, "args", "--service=users"),
            ("Service", "viewstamp-services"),
            ("Service", "viewstamp-services", "spec", "publishNotReadyAddresses"),
        ),
        (APART,),
    ),
    Item(
        13,
        "coordinator and services prove who they are, and none allows clear text",
        apart_checks.services_speak_tls,
        (
            (*_COORDINATOR, "args", "--service-tls-ca"),
            (*_COORDINATOR, "volumeMounts", "coordinator-tls"),
            *((*_APART_POD, "containers", name, "args", "--tls-ca") for name in SIDECARS),
            (*_APART_POD, "containers", "users", "volumeMounts", "service-tls"),
        ),
        (APART,),
    ),
    Item(
        5,
        "services apart are restarted patiently, and leave one at a time",
        apart_checks.services_are_probed,
        (
            ("PodDisruptionBudget", "viewstamp-services"),
            (*_APART_POD, "affinity"),
            (*_APART_POD, "containers", "streams", "livenessProbe"),
            (*_APART_POD, "containers", "users", "startupProbe", "failureThreshold"),
        ),
        (APART,),
    ),
    Item(
        8,
        "services apart have memory requested whole, and no limit of processor time",
        manifest_checks.is_sized,
        ((*_APART_POD, "containers", "streams", "resources", "limits"),),
        (APART,),
    ),
    Item(
        9,
        "services apart do not run as root, and have no privilege or token",
        manifest_checks.is_confined,
        (
            (*_APART_POD, "securityContext", "runAsNonRoot"),
            (*_APART_POD, "automountServiceAccountToken"),
            (*_APART_POD, "containers", "users", "securityContext", "readOnlyRootFilesystem"),
        ),
        (APART,),
    ),
    Item(
        10,
        "policies close pods of services, and name each flow to them",
        apart_checks.names_all_flows_apart,
        (
            (_POLICY, "viewstamp-services"),
            (_POLICY, "viewstamp-services", "spec", "ingress", 0, "from"),
            (_POLICY, "viewstamp-to-services", "spec", "egress", 0, "to"),
            (_POLICY, "viewstamp-services-metrics"),
        ),
        (APART,),
    ),
    Item(
        10,
        "policies close every pod in both directions, those of services, too",
        manifest_checks.is_closed_by_default,
        ((_POLICY, "viewstamp-services", "spec", "policyTypes", 1),),
        (APART,),
    ),
    Item(
        15,
        "objects of services apart have the recommended labels",
        manifest_checks.is_labelled,
        (("StatefulSet", "viewstamp-services", "metadata", "labels"),),
        (APART,),
    ),
    Item(
        16,
        "certificates name each coordinator and each service of each replica",
        apart_checks.proves_services,
        (
            ("Certificate", "viewstamp-service-tls", "spec", "dnsNames", 4),
            ("Certificate", "viewstamp-coordinator-tls", "spec", "dnsNames", 2),
            ("Certificate", "viewstamp-coordinator-tls", "spec", "usages", 1),
            ("Certificate", "viewstamp-service-tls", "spec", "renewBefore"),
            ("Issuer", "viewstamp-service-authority"),
        ),
        (APART,),
    ),
)
CHECKLIST: Final = (
    *_APART,
    Item(
        1,
        "an odd number of replicas start in parallel and are replaced one by one",
        manifest_checks.rolls_pod_by_pod,
        tuple(
            (*_SET, key)
            for key in ("serviceName", "podManagementPolicy", "updateStrategy", "replicas")
        ),
    ),
    Item(
        2,
        "pods have names before they are ready, and clients a service of named ports",
        manifest_checks.has_services,
        (
            ("Service", "viewstamp-headless", "spec", "clusterIP"),
            ("Service", "viewstamp-headless", "spec", "publishNotReadyAddresses"),
            ("Service", "viewstamp-headless", "spec", "ports", 0, "name"),
            ("Service", "viewstamp", "spec", "ports", 0, "appProtocol"),
            ("Service", "viewstamp"),
        ),
    ),
    Item(
        3,
        "one replica at most leaves for a node that is drained",
        manifest_checks.lets_one_go,
        (
            ("PodDisruptionBudget", "viewstamp"),
            ("PodDisruptionBudget", "viewstamp", "spec", "maxUnavailable"),
            ("PodDisruptionBudget", "viewstamp", "spec", "unhealthyPodEvictionPolicy"),
        ),
    ),
    Item(
        4,
        "no two replicas share a node, and zones are used evenly",
        manifest_checks.is_spread,
        ((*_POD, "affinity"), (*_POD, "topologySpreadConstraints")),
        _FULL,
    ),
    Item(
        5,
        "probes leave time to recover, and liveness is patient and not readiness",
        manifest_checks.is_probed_patiently,
        tuple(
            (*_COORDINATOR, probe, *rest)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe")
            for rest in ((), ("failureThreshold",), ("grpc",))
            if (probe, rest) != ("startupProbe", ("grpc",))
        ),
    ),
    Item(
        6,
        "a pod that leaves has time to be forgotten, to hand over and to end calls",
        manifest_checks.leaves_in_order,
        ((*_COORDINATOR, "lifecycle"), (*_POD, "terminationGracePeriodSeconds")),
    ),
    Item(
        7,
        "data lies on claims that outlive the set",
        manifest_checks.keeps_volumes,
        (
            (*_SET, "persistentVolumeClaimRetentionPolicy"),
            (*_SET, "volumeClaimTemplates", 0),
            (*_SET, "volumeClaimTemplates", 0, "spec", "accessModes"),
        ),
    ),
    Item(
        7,
        "each copy of a snapshot has a volume of its own",
        manifest_checks.keeps_copies_apart,
        (
            (*_SET, "volumeClaimTemplates", 1),
            (*_COORDINATOR, "volumeMounts", "copy-1"),
        ),
        ("production", REPLICATED),
    ),
    Item(
        8,
        "memory is requested whole, and processor time has no limit",
        manifest_checks.is_sized,
        (
            (*_COORDINATOR, "resources", "limits"),
            (*_COORDINATOR, "resources", "requests", "cpu"),
            (*_POD, "initContainers", "streams", "resources", "limits"),
        ),
    ),
    Item(
        9,
        "no job runs as root, writes to its image, or has a privilege or a token",
        manifest_checks.is_confined,
        tuple(
            (*pod, *rest)
            for pod, name in ((_ARCHIVE_POD, "archive"), (_ANALYSIS_POD, "analysis"))
            for rest in (
                ("securityContext", "runAsNonRoot"),
                ("automountServiceAccountToken",),
                ("containers", name, "securityContext", "readOnlyRootFilesystem"),
                ("containers", name, "securityContext", "capabilities"),
            )
        ),
        _FULL,
    ),
    Item(
        9,
        "nothing runs as root, writes to its image, or has a privilege or a token",
        manifest_checks.is_confined,
        (
            *((*_POD, "securityContext", key) for key in ("runAsNonRoot", "runAsUser", "fsGroup")),
            (*_POD, "securityContext", "seccompProfile"),
            (*_POD, "automountServiceAccountToken"),
            (*_POD, "enableServiceLinks"),
            ("ServiceAccount", "viewstamp", "automountServiceAccountToken"),
            *(
                (*_COORDINATOR, "securityContext", key)
                for key in ("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities")
            ),
            (*_POD, "initContainers", "consumer-groups", "securityContext"),
        ),
    ),
    Item(
        10,
        "policies close every pod, in both directions",
        manifest_checks.is_closed_by_default,
        ((_POLICY, "viewstamp"),),
        LONE,
    ),
    Item(
        10,
        "policies close every pod, in both directions, those of the jobs, too",
        manifest_checks.is_closed_by_default,
        (
            (_POLICY, "viewstamp-archive"),
            (_POLICY, "viewstamp-archive", "spec", "policyTypes", 1),
            (_POLICY, "viewstamp-analysis"),
            (_POLICY, "viewstamp-analysis", "spec", "policyTypes", 1),
        ),
        _FULL,
    ),
    Item(
        10,
        "policies name each flow",
        manifest_checks.names_its_flows,
        ((_POLICY, "viewstamp", "spec", "ingress", 0),),
    ),
    Item(
        10,
        "policies name the flows between replicas, of the scraper and of the archive",
        manifest_checks.names_all_flows,
        (
            (_POLICY, "viewstamp-peers"),
            (_POLICY, "viewstamp-metrics"),
            (_POLICY, "viewstamp-peers", "spec", "ingress", 0, "from"),
            (_POLICY, "viewstamp-metrics", "spec", "ingress", 0, "from"),
            (_POLICY, "viewstamp-archive", "spec", "egress", 0, "to"),
            (_POLICY, "viewstamp-peers", "spec", "egress", 1),
        ),
        _FULL,
    ),
    Item(
        11,
        "every process is scraped",
        manifest_checks.is_scraped,
        (
            ("PodMonitor", "viewstamp", "spec", "podMetricsEndpoints", 2),
            (*_POD, "initContainers", "users", "ports"),
        ),
        _FULL,
    ),
    Item(
        11,
        "every alert has a severity and a page that says what to do",
        manifest_checks.alerts_have_runbooks,
        (
            ("PrometheusRule", "viewstamp", "spec", "groups", 0),
            (
                "PrometheusRule",
                "viewstamp",
                "spec",
                "groups",
                0,
                "rules",
                3,
                "annotations",
                "runbook",
            ),
            ("PrometheusRule", "viewstamp", "spec", "groups", 0, "rules", 0, "labels", "severity"),
        ),
        _FULL,
    ),
    Item(
        11,
        "the alerts and the dashboard are those that are tested by themselves",
        manifest_checks.has_alerts_and_dashboard,
        (
            ("ConfigMap", "viewstamp-dashboard"),
            ("ConfigMap", "viewstamp-dashboard", "metadata", "labels", "grafana_dashboard"),
            ("PrometheusRule", "viewstamp", "spec", "groups", 0, "rules", 5),
        ),
        _FULL,
    ),
    Item(
        12,
        "a changed setting is rolled out, and every setting is used",
        manifest_checks.rolls_out_settings,
        ((*_COORDINATOR, "env", "LOG_LEVEL"),),
    ),
    Item(
        12,
        "secrets are read-only files for the pod alone",
        manifest_checks.keeps_secrets_apart,
        (
            (*_POD, "volumes", "cluster-key", "secret", "defaultMode"),
            (*_COORDINATOR, "volumeMounts", "cluster-key", "readOnly"),
        ),
    ),
    Item(
        13,
        "services are native sidecars, started before the coordinator, in order",
        manifest_checks.has_native_sidecars,
        tuple((*_POD, "initContainers", name, "restartPolicy") for name in SIDECARS)
        + tuple((*_POD, "initContainers", name, "startupProbe") for name in SIDECARS),
    ),
    Item(
        14,
        "a replica knows its number from its pod, and how many there are",
        manifest_checks.knows_who_it_is,
        (
            (*_COORDINATOR, "env", "REPLICA_ID"),
            (*_COORDINATOR, "args", "--replica-count"),
            (*_COORDINATOR, "args", "--replica-id"),
        ),
    ),
    Item(
        14,
        "replicas know their cluster and each other by name",
        manifest_checks.knows_its_cluster,
        ((*_COORDINATOR, "args", "--peer=1"), (*_COORDINATOR, "args", "--cluster-id")),
        _FULL,
    ),
    Item(
        15,
        "the newest snapshot is archived on a volume of its own",
        job_checks.is_archived,
        (
            ("CronJob", "viewstamp-archive"),
            ("PersistentVolumeClaim", "viewstamp-archive"),
            (*_ARCHIVE_POD, "containers", "archive", "args", "--output"),
        ),
        _FULL,
    ),
    Item(
        15,
        "the archive is analysed where it is, onto a volume of its own",
        job_checks.is_analysed,
        (
            ("CronJob", "viewstamp-analysis"),
            ("PersistentVolumeClaim", "viewstamp-analysis"),
            *(
                (*_ANALYSIS_POD, "containers", "analysis", "args", argument)
                for argument in ("--master", "--snapshots", "--output")
            ),
            (*_ANALYSIS_POD, "containers", "analysis", "volumeMounts", "temporary"),
            (*_ANALYSIS_POD, "containers", "analysis", "volumeMounts", "archive", "readOnly"),
        ),
        _FULL,
    ),
    Item(
        15,
        "jobs run one at a time, end, and leave few pods behind",
        job_checks.jobs_end,
        tuple(
            (*job, *rest)
            for job in (("CronJob", "viewstamp-archive"), ("CronJob", "viewstamp-analysis"))
            for rest in (
                ("spec", "concurrencyPolicy"),
                ("spec", "startingDeadlineSeconds"),
                ("spec", "successfulJobsHistoryLimit"),
                ("spec", "failedJobsHistoryLimit"),
                ("spec", "jobTemplate", "spec", "activeDeadlineSeconds"),
                ("spec", "jobTemplate", "spec", "backoffLimit"),
                ("spec", "jobTemplate", "spec", "template", "spec", "restartPolicy"),
            )
        ),
        _FULL,
    ),
    Item(
        15,
        "objects have the recommended labels",
        manifest_checks.is_labelled,
        (
            ("StatefulSet", "viewstamp", "metadata", "labels"),
            ("Service", "viewstamp", "metadata", "labels", "app.kubernetes.io/version"),
        ),
    ),
    Item(
        16,
        "cert-manager makes each certificate that is mounted, and renews it before a warning",
        manifest_checks.is_certified,
        (
            ("Certificate", "viewstamp-tls"),
            ("Certificate", "viewstamp-peer-tls", "spec", "renewBefore"),
            ("Issuer", "viewstamp-peer-authority"),
        ),
        _FULL,
    ),
    Item(
        16,
        "certificates of replicas name each of them, and come from an authority of their own",
        manifest_checks.proves_replicas,
        (
            ("Certificate", "viewstamp-peer-tls", "spec", "dnsNames", 1),
            ("Certificate", "viewstamp-peer-tls", "spec", "usages", 2),
        ),
        _FULL,
    ),
)
