"""What is expected of clusters that ship to an archive, and of jobs that restore from it."""

from __future__ import annotations

from typing import Final

from tests.deploy import archive_checks, manifest_checks
from tests.deploy.omissions import COORDINATOR, POD, POLICY, Item
from tests.deploy.pod import GROWN, RESTORING

_JOB: Final = ("Job", "viewstamp-restore-1", "spec")
_JOB_POD: Final = (*_JOB, "template", "spec")
_RESTORE: Final = (*_JOB_POD, "containers", "restore")
ARCHIVE_CHECKLIST: Final = (
    Item(
        15,
        "the log is shipped to a store, encrypted, with credentials from a secret",
        archive_checks.ships,
        (
            (*COORDINATOR, "args", "--archive-to"),
            (*COORDINATOR, "args", "--archive-key-file"),
            (*COORDINATOR, "env", "ARCHIVE_TO"),
            *((*COORDINATOR, "env", name) for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID")),
            (*COORDINATOR, "volumeMounts", "log-archive-key"),
            (POLICY, "viewstamp-log-archive"),
            (POLICY, "viewstamp-log-archive", "spec", "egress", 0),
        ),
        (GROWN, RESTORING),
    ),
    Item(
        11,
        "somebody is told when the archive lags",
        archive_checks.tells_of_a_lag,
        (("PrometheusRule", "viewstamp"), (*COORDINATOR, "args", "--metrics-listen")),
        (GROWN,),
    ),
    Item(
        12,
        "the key of the archive is a read-only file for the pod alone",
        manifest_checks.keeps_secrets_apart,
        (
            (*POD, "volumes", "log-archive-key", "secret", "defaultMode"),
            (*COORDINATOR, "volumeMounts", "log-archive-key", "readOnly"),
        ),
        (GROWN, RESTORING),
    ),
    Item(
        7,
        "each replica is restored by a job, to the volumes that its pod will have",
        archive_checks.restores_each_replica,
        (
            ("Job", "viewstamp-restore-2"),
            ("PersistentVolumeClaim", "data-viewstamp-1"),
            ("PersistentVolumeClaim", "copy-2-viewstamp-1"),
            ("PersistentVolumeClaim", "data-viewstamp-1", "metadata", "annotations"),
            ("StatefulSet", "viewstamp", "spec", "replicas"),
            *(
                (*_RESTORE, "args", argument)
                for argument in (
                    *("--into", "--replicas", "--only-replica", "--cluster-id"),
                    *("--archive-key-file", "--snapshot-directory=/var/lib/viewstamp-copies/2"),
                )
            ),
            (*_RESTORE, "env", "SOURCE"),
            (*_RESTORE, "env", "AWS_SECRET_ACCESS_KEY"),
            (*_RESTORE, "volumeMounts", "copy-1"),
        ),
        (RESTORING,),
    ),
    Item(
        15,
        "jobs that restore end, and each is on a node of its own",
        archive_checks.restores_come_to_an_end,
        (
            (*_JOB, "activeDeadlineSeconds"),
            (*_JOB, "backoffLimit"),
            (*_JOB_POD, "restartPolicy"),
            (*_JOB_POD, "affinity"),
        ),
        (RESTORING,),
    ),
    Item(
        10,
        "jobs that restore reach the store alone",
        archive_checks.names_flows_of_restores,
        ((POLICY, "viewstamp-restore"), (POLICY, "viewstamp-restore", "spec", "egress", 1)),
        (RESTORING,),
    ),
    Item(
        10,
        "policies close the pods of jobs that restore, in both directions",
        manifest_checks.is_closed_by_default,
        ((POLICY, "viewstamp-restore", "spec", "policyTypes", 0),),
        (RESTORING,),
    ),
    Item(
        9,
        "jobs that restore do not run as root, and have no privilege or token",
        manifest_checks.is_confined,
        (
            (*_JOB_POD, "securityContext", "runAsNonRoot"),
            (*_JOB_POD, "automountServiceAccountToken"),
            (*_RESTORE, "securityContext", "readOnlyRootFilesystem"),
        ),
        (RESTORING,),
    ),
    Item(
        8,
        "jobs that restore have memory requested whole, and no limit of processor time",
        manifest_checks.is_sized,
        ((*_RESTORE, "resources", "limits"),),
        (RESTORING,),
    ),
    Item(
        15,
        "objects of jobs that restore have the recommended labels",
        manifest_checks.is_labelled,
        (("Job", "viewstamp-restore-1", "metadata", "labels"),),
        (RESTORING,),
    ),
)
