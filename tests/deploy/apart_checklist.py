"""What is expected of services in pods of their own."""

from __future__ import annotations

from typing import Final

from tests.deploy import apart_checks, manifest_checks
from tests.deploy.omissions import COORDINATOR, POLICY, Item
from tests.deploy.pod import APART, SIDECARS

_APART_SET: Final = ("StatefulSet", "viewstamp-services", "spec")
_APART_POD: Final = (*_APART_SET, "template", "spec")
APART_CHECKLIST: Final = (
    Item(
        13,
        "each replica has a pod of services, and knows them by that pod's name",
        apart_checks.has_services_apart,
        (
            (*_APART_SET, "replicas"),
            (*_APART_SET, "podManagementPolicy"),
            (*_APART_POD, "containers", "streams"),
            (*COORDINATOR, "args", "--service=users"),
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
            (*COORDINATOR, "args", "--service-tls-ca"),
            (*COORDINATOR, "volumeMounts", "coordinator-tls"),
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
            (POLICY, "viewstamp-services"),
            (POLICY, "viewstamp-services", "spec", "ingress", 0, "from"),
            (POLICY, "viewstamp-to-services", "spec", "egress", 0, "to"),
            (POLICY, "viewstamp-services-metrics"),
        ),
        (APART,),
    ),
    Item(
        10,
        "policies close every pod in both directions, those of services, too",
        manifest_checks.is_closed_by_default,
        ((POLICY, "viewstamp-services", "spec", "policyTypes", 1),),
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
