"""Whether replicas ship to an archive, and jobs found a new cluster on one.

A check may raise LookupError, ValueError or AssertionError where what it looks for is not there.
"""

from __future__ import annotations

from typing import Final

import coordinator.app.config
from tests.deploy.manifest_checks import STORE_FLOWS, Objects, policies_of, spec_of
from tests.deploy.pod import (
    CLUSTER_ID,
    CONFIG_MAPS,
    Object,
    arguments,
    flag,
    overlay,
    volume_at,
)
from tests.deploy.pod import coordinator as coordinator_of

# What AWS' tools read, and where it comes from.
_STORE: Final = {
    "AWS_ENDPOINT_URL": ("configMapKeyRef", "endpoint"),
    "AWS_REGION": ("configMapKeyRef", "region"),
    "AWS_ACCESS_KEY_ID": ("secretKeyRef", "access-key-id"),
    "AWS_SECRET_ACCESS_KEY": ("secretKeyRef", "secret-access-key"),
}
_KEY: Final = "/etc/viewstamp/log-archive-key/archive.key"
_REPLICAS: Final = 3


def ships(objects: Objects) -> bool:
    """Return whether each coordinator ships, encrypted, to the place and store that are named."""
    found = coordinator_of(objects)
    shipping = coordinator.app.config.parse(arguments(found, 0)).archive_shipping
    assert shipping is not None
    return (
        shipping.place == CONFIG_MAPS["viewstamp-log-archive", "place"]
        and list(map(str, shipping.key_files)) == [_KEY]
        and volume_at(found, _KEY) == "log-archive-key"
        and _knows_store(found)
        and policies_of(objects)["viewstamp-log-archive"] == STORE_FLOWS
    )


def _knows_store(container: Object) -> bool:
    """Return whether a container has what AWS' tools need, if the operator gave it."""
    found = {one["name"]: one.get("valueFrom") for one in container["env"]}
    return all(
        found[name] == {kind: {"name": "viewstamp-log-archive", "key": key, "optional": True}}
        for name, (kind, key) in _STORE.items()
    )


def tells_of_a_lag(objects: Objects) -> bool:
    """Return whether somebody is alerted when the archive lags, or has a gap."""
    rules = [
        rule for group in spec_of(objects, "PrometheusRule")["groups"] for rule in group["rules"]
    ]
    alerts = {rule["alert"]: rule["expr"] for rule in rules}
    return (
        "viewstamp_archive_lag_seconds" in alerts["ViewstampArchiveBehind"]
        and "viewstamp_archive_gap" in alerts["ViewstampArchiveGap"]
        and flag(coordinator_of(objects), "metrics-listen") == "0.0.0.0:7430"
    )


def restores_each_replica(objects: Objects) -> bool:
    """Return whether a job of its own restores each replica, where its pod will look for it."""
    later = overlay("production")
    own = coordinator_of(later)["args"]
    return spec_of(objects, "StatefulSet")["replicas"] == 0 and all(
        _restores(objects, replica, [arg for arg in own if arg.startswith("--snapshot-directory=")])
        for replica in range(_REPLICAS)
    )


def _restores(objects: Objects, replica: int, copies: list[str]) -> bool:
    spec = spec_of(objects, "Job", f"viewstamp-restore-{replica}")["template"]["spec"]
    (container,) = spec["containers"]
    command, source, *flags = arguments(container, replica)
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    }
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    of_pod = {
        mount["mountPath"]: f"{mount['name']}-viewstamp-{replica}"
        for mount in coordinator_of(objects)["volumeMounts"]
        if mount["name"] in ("data", "copy-1", "copy-2")
    }
    return (
        (command, source) == ("restore", CONFIG_MAPS["viewstamp-restore", "source"])
        and {
            *copies,
            f"--into={flag(coordinator_of(objects), 'data-directory')}",
            f"--replicas={_REPLICAS}",
            f"--only-replica={replica}",
            f"--cluster-id={CLUSTER_ID}",
            f"--archive-key-file={_KEY}",
        }
        == set(flags)
        and {path: claims[mounted[path]] for path in of_pod} == of_pod
        and all(_is_of_the_set(objects, claim) for claim in of_pod.values())
        and _knows_store(container)
        and volume_at(container, _KEY) == "log-archive-key"
    )


def _is_of_the_set(objects: Objects, name: str) -> bool:
    """Return whether a claim is what the set would make, and outlives whoever made it."""
    claim = objects["PersistentVolumeClaim", name]
    (template,) = [
        one["spec"]
        for one in spec_of(objects, "StatefulSet")["volumeClaimTemplates"]
        if name.startswith(f"{one['metadata']['name']}-viewstamp-")
    ]
    kept: bool = claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    return kept and claim["spec"] == template


def restores_come_to_an_end(objects: Objects) -> bool:
    """Return whether each job ends, is where its replica can be, and reaches the store alone."""
    specs = [found["spec"] for (kind, _), found in objects.items() if kind == "Job"]
    return len(specs) == _REPLICAS and all(
        0 < spec["activeDeadlineSeconds"] < 24 * 60 * 60
        and 0 < spec["backoffLimit"] <= 3
        and spec["template"]["spec"]["restartPolicy"] == "Never"
        and _is_apart(spec["template"])
        for spec in specs
    )


def _is_apart(template: Object) -> bool:
    (rule,) = template["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    return bool(
        rule["topologyKey"] == "kubernetes.io/hostname"
        and rule["labelSelector"]["matchLabels"] == template["metadata"]["labels"]
    )


def names_flows_of_restores(objects: Objects) -> bool:
    """Return whether jobs that restore reach the store alone, and nobody reaches them."""
    return policies_of(objects)["viewstamp-restore"] == STORE_FLOWS
