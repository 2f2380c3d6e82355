"""Whether CronJobs of the rendered manifests do their work alone, and come to an end.

A check may raise LookupError, ValueError or AssertionError where what it looks for is not there.
"""

from __future__ import annotations

from tests.deploy.manifest_checks import Objects, spec_of
from tests.deploy.pod import Object, flag, volume_at


def jobs_end(objects: Objects) -> bool:
    """Return whether each job runs alone, has limits to its time and tries, and leaves few pods."""
    return all(
        _job_ends(found["spec"]) for (kind, _), found in objects.items() if kind == "CronJob"
    )


def _job_ends(job: Object) -> bool:
    spec = job["jobTemplate"]["spec"]
    return bool(
        job["concurrencyPolicy"] == "Forbid"
        and job["timeZone"] == "Etc/UTC"
        and job["startingDeadlineSeconds"] > 0
        and 0 < job["successfulJobsHistoryLimit"] <= 3
        and 0 < job["failedJobsHistoryLimit"] <= 3
        and 0 < spec["activeDeadlineSeconds"] < 24 * 60 * 60
        and 0 < spec["backoffLimit"] <= 3
        and spec["template"]["spec"]["restartPolicy"] == "Never"
    )


def is_archived(objects: Objects) -> bool:
    """Return whether the newest snapshot is archived on a volume of its own."""
    container, claims = _claims_of_job(objects, "viewstamp-archive")
    claim, read_only = claims["/archive"]
    return (
        not read_only
        and ("PersistentVolumeClaim", claim) in objects
        and flag(container, "output").startswith("/archive/")
    )


def is_analysed(objects: Objects) -> bool:
    """Return whether the archive is analysed where it is, onto a volume of its own."""
    archive, claims = _claims_of_job(objects, "viewstamp-archive")
    container, own = _claims_of_job(objects, "viewstamp-analysis")
    return (
        own["/archive"] == (claims["/archive"][0], True)
        and own["/analysis"] == ("viewstamp-analysis", False)
        and ("PersistentVolumeClaim", "viewstamp-analysis") in objects
        and flag(container, "snapshots") == flag(archive, "output")
        and flag(container, "output").startswith("/analysis/")
        # More cores would need more memory than the limit has.
        and flag(container, "master") == "local[2]"
        and volume_at(container, "/tmp") == "temporary"
    )


def _claims_of_job(objects: Objects, name: str) -> tuple[Object, dict[str, tuple[str, bool]]]:
    """Return the container of a CronJob, and claim and mode of the volumes at its paths."""
    spec = spec_of(objects, "CronJob", name)["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    return container, {
        mount["mountPath"]: (claims[mount["name"]], mount.get("readOnly", False))
        for mount in container["volumeMounts"]
        if mount["name"] in claims
    }
