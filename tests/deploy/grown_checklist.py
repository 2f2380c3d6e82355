"""What is expected of a cluster whose members change."""

from __future__ import annotations

from typing import Final

from tests.deploy import manifest_checks, member_checks
from tests.deploy.omissions import COORDINATOR, POD, POLICY, SET, Item
from tests.deploy.pod import APART, GROWN, REPLICATED

GROWN_CHECKLIST: Final = (
    Item(
        14,
        "a pod that is added asks others for its id, by the address that they know it by",
        member_checks.asks_for_its_id,
        (
            (*COORDINATOR, "args", "--join-as"),
            (*COORDINATOR, "args", "--peer=1"),
            (*COORDINATOR, "env", "POD_NAME"),
        ),
        (GROWN,),
    ),
    Item(
        1,
        "the policy lets pods come and go where members do, and no further than members can",
        member_checks.is_marked_for_the_policy,
        (("StatefulSet", "viewstamp", "metadata", "annotations"),),
        (GROWN,),
    ),
    Item(
        16,
        "certificates name replicas that come after others were removed",
        member_checks.certifies_later_replicas,
        (("Certificate", "viewstamp-peer-tls", "spec", "dnsNames", 15),),
        (GROWN, REPLICATED),
    ),
    Item(
        16,
        "certificates name the services of replicas that come after others were removed",
        member_checks.certifies_later_services,
        (
            ("Certificate", "viewstamp-service-tls", "spec", "dnsNames", 47),
            ("Certificate", "viewstamp-coordinator-tls", "spec", "dnsNames", 15),
        ),
        (APART,),
    ),
    Item(
        1,
        "however many there are, pods start in parallel and are replaced one by one",
        manifest_checks.rolls_pod_by_pod,
        ((*SET, "podManagementPolicy"), (*SET, "updateStrategy")),
        (GROWN,),
    ),
    Item(
        3,
        "however many there are, one replica at most leaves for a node that is drained",
        manifest_checks.lets_one_go,
        (("PodDisruptionBudget", "viewstamp", "spec", "maxUnavailable"),),
        (GROWN,),
    ),
    Item(
        4,
        "however many there are, no two replicas share a node",
        manifest_checks.is_spread,
        ((*POD, "affinity"), (*POD, "topologySpreadConstraints")),
        (GROWN,),
    ),
    Item(
        5,
        "a pod that waits to be added is not killed, and is not ready",
        manifest_checks.is_probed_patiently,
        ((*COORDINATOR, "startupProbe"), (*COORDINATOR, "readinessProbe")),
        (GROWN,),
    ),
    Item(
        7,
        "the volume of a pod that left stays until somebody deletes it",
        manifest_checks.keeps_volumes,
        ((*SET, "persistentVolumeClaimRetentionPolicy", "whenScaled"),),
        (GROWN,),
    ),
    Item(
        10,
        "policies name the flows between replicas, whichever pods there are",
        manifest_checks.names_its_flows,
        (
            (POLICY, "viewstamp-peers", "spec", "ingress", 0, "from"),
            (POLICY, "viewstamp-peers", "spec", "egress", 0, "to"),
        ),
        (GROWN,),
    ),
)
