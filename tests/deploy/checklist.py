"""What Kubernetes' operators expect of the manifests of a replicated store: a table of checks.

Each item holds for rendered objects or not, and names what can be taken out of them so that it must
fail: a check that bears the loss of what it checks would prove nothing.
"""

from __future__ import annotations

from typing import Final

from tests.deploy import job_checks, manifest_checks
from tests.deploy.apart_checklist import APART_CHECKLIST
from tests.deploy.archive_checklist import ARCHIVE_CHECKLIST
from tests.deploy.grown_checklist import GROWN_CHECKLIST
from tests.deploy.omissions import COORDINATOR, POD, POLICY, SET, Item
from tests.deploy.pod import LONE, REPLICATED, SIDECARS

_JOB_POD: Final = ("spec", "jobTemplate", "spec", "template", "spec")
_ARCHIVE_POD: Final = ("CronJob", "viewstamp-archive", *_JOB_POD)
_ANALYSIS_POD: Final = ("CronJob", "viewstamp-analysis", *_JOB_POD)
_FULL: Final = (REPLICATED,)
CHECKLIST: Final = (
    *APART_CHECKLIST,
    *GROWN_CHECKLIST,
    *ARCHIVE_CHECKLIST,
    Item(
        1,
        "an odd number of replicas start in parallel and are replaced one by one",
        manifest_checks.rolls_pod_by_pod,
        tuple(
            (*SET, key)
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
        ((*POD, "affinity"), (*POD, "topologySpreadConstraints")),
        _FULL,
    ),
    Item(
        5,
        "probes leave time to recover, and liveness is patient and not readiness",
        manifest_checks.is_probed_patiently,
        tuple(
            (*COORDINATOR, probe, *rest)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe")
            for rest in ((), ("failureThreshold",), ("grpc",))
            if (probe, rest) != ("startupProbe", ("grpc",))
        ),
    ),
    Item(
        6,
        "a pod that leaves has time to be forgotten, to hand over and to end calls",
        manifest_checks.leaves_in_order,
        ((*COORDINATOR, "lifecycle"), (*POD, "terminationGracePeriodSeconds")),
    ),
    Item(
        7,
        "data lies on claims that outlive the set",
        manifest_checks.keeps_volumes,
        (
            (*SET, "persistentVolumeClaimRetentionPolicy"),
            (*SET, "volumeClaimTemplates", 0),
            (*SET, "volumeClaimTemplates", 0, "spec", "accessModes"),
        ),
    ),
    Item(
        7,
        "each copy of a snapshot has a volume of its own",
        manifest_checks.keeps_copies_apart,
        (
            (*SET, "volumeClaimTemplates", 1),
            (*COORDINATOR, "volumeMounts", "copy-1"),
        ),
        ("production", REPLICATED),
    ),
    Item(
        8,
        "memory is requested whole, and processor time has no limit",
        manifest_checks.is_sized,
        (
            (*COORDINATOR, "resources", "limits"),
            (*COORDINATOR, "resources", "requests", "cpu"),
            (*POD, "initContainers", "streams", "resources", "limits"),
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
            *((*POD, "securityContext", key) for key in ("runAsNonRoot", "runAsUser", "fsGroup")),
            (*POD, "securityContext", "seccompProfile"),
            (*POD, "automountServiceAccountToken"),
            (*POD, "enableServiceLinks"),
            ("ServiceAccount", "viewstamp", "automountServiceAccountToken"),
            *(
                (*COORDINATOR, "securityContext", key)
                for key in ("allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities")
            ),
            (*POD, "initContainers", "consumer-groups", "securityContext"),
        ),
    ),
    Item(
        10,
        "policies close every pod, in both directions",
        manifest_checks.is_closed_by_default,
        ((POLICY, "viewstamp"),),
        LONE,
    ),
    Item(
        10,
        "policies close every pod, in both directions, those of the jobs, too",
        manifest_checks.is_closed_by_default,
        (
            (POLICY, "viewstamp-archive"),
            (POLICY, "viewstamp-archive", "spec", "policyTypes", 1),
            (POLICY, "viewstamp-analysis"),
            (POLICY, "viewstamp-analysis", "spec", "policyTypes", 1),
        ),
        _FULL,
    ),
    Item(
        10,
        "policies name each flow",
        manifest_checks.names_its_flows,
        ((POLICY, "viewstamp", "spec", "ingress", 0),),
    ),
    Item(
        10,
        "policies name the flows between replicas, of the scraper and of the archive",
        manifest_checks.names_all_flows,
        (
            (POLICY, "viewstamp-peers"),
            (POLICY, "viewstamp-metrics"),
            (POLICY, "viewstamp-peers", "spec", "ingress", 0, "from"),
            (POLICY, "viewstamp-metrics", "spec", "ingress", 0, "from"),
            (POLICY, "viewstamp-archive", "spec", "egress", 0, "to"),
            (POLICY, "viewstamp-peers", "spec", "egress", 1),
        ),
        _FULL,
    ),
    Item(
        11,
        "every process is scraped",
        manifest_checks.is_scraped,
        (
            ("PodMonitor", "viewstamp", "spec", "podMetricsEndpoints", 2),
            (*POD, "initContainers", "users", "ports"),
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
        ((*COORDINATOR, "env", "LOG_LEVEL"),),
    ),
    Item(
        12,
        "secrets are read-only files for the pod alone",
        manifest_checks.keeps_secrets_apart,
        (
            (*POD, "volumes", "cluster-key", "secret", "defaultMode"),
            (*COORDINATOR, "volumeMounts", "cluster-key", "readOnly"),
        ),
    ),
    Item(
        13,
        "services are native sidecars, started before the coordinator, in order",
        manifest_checks.has_native_sidecars,
        tuple((*POD, "initContainers", name, "restartPolicy") for name in SIDECARS)
        + tuple((*POD, "initContainers", name, "startupProbe") for name in SIDECARS),
    ),
    Item(
        14,
        "a replica knows its number from its pod, and how many there are",
        manifest_checks.knows_who_it_is,
        (
            (*COORDINATOR, "env", "REPLICA_ID"),
            (*COORDINATOR, "args", "--replica-count"),
            (*COORDINATOR, "args", "--replica-id"),
        ),
    ),
    Item(
        14,
        "replicas know their cluster and each other by name",
        manifest_checks.knows_its_cluster,
        ((*COORDINATOR, "args", "--peer=1"), (*COORDINATOR, "args", "--cluster-id")),
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
