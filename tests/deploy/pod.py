"""Queries about the rendered pod, for tests."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from viewstamp.routing import SERVICE_NAMES

Object: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str]  # kind and name

ROOT: Final = Path(__file__).resolve().parents[2]
LONE: Final = ("local", "production")
REPLICATED: Final = "replicated"
OVERLAYS: Final = (*LONE, REPLICATED)
# Its services are in pods of their own, so that what is said of sidecars does not hold for it.
APART: Final = "apart"
# Founded by three, with five pods by now.
GROWN: Final = "grown"
# Has no pods yet: jobs found it on an archive.
RESTORING: Final = "restoring"
SIDECARS: Final = tuple(name.replace("_", "-") for name in SERVICE_NAMES)
# From this version on containers may sleep before they stop; native sidecars are older.
KUBERNETES_MIN: Final = "1.30"
NAMESPACE: Final = "viewstamp"
CLUSTER_ID: Final = "ab" * 16
# Values that the operator creates: (config map, key) -> value.
CONFIG_MAPS: Final = {
    ("viewstamp-cluster", "cluster-id"): CLUSTER_ID,
    ("viewstamp-log-archive", "place"): "s3://bucket/cluster",
    ("viewstamp-restore", "source"): "s3://bucket/lost",
}
SETTINGS: Final = "viewstamp-settings"
# Resources of others, whose schemas are not Kubernetes'.
FOREIGN_GROUPS: Final = frozenset({"cert-manager.io", "monitoring.coreos.com"})


@cache
def _rendered(name: str) -> dict[Key, Object]:
    text = (ROOT / "deploy" / "rendered" / f"{name}.yaml").read_text()
    objects = list(yaml.load_all(text, yaml.CSafeLoader))
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects), "two objects have one name"
    return found


def overlay(name: str) -> dict[Key, Object]:
    """Return the objects of an overlay, as kustomize rendered them; the caller may change them."""
    return copy.deepcopy(_rendered(name))


def settings(objects: dict[Key, Object]) -> Object:
    """Return the ConfigMap of the settings, whose name ends with a checksum."""
    (found,) = [
        found
        for (kind, name), found in objects.items()
        if kind == "ConfigMap" and name.startswith(f"{SETTINGS}-")
    ]
    return found


def pod_templates(objects: dict[Key, Object]) -> Iterator[tuple[str, Object]]:
    """Yield the template of each kind of pod, with the name of its owner."""
    for (kind, name), found in objects.items():
        if kind == "StatefulSet":
            yield name, found["spec"]["template"]
        elif kind == "CronJob":
            yield name, found["spec"]["jobTemplate"]["spec"]["template"]
        elif kind == "Job":
            yield name, found["spec"]["template"]


def containers(objects: dict[Key, Object]) -> list[Object]:
    """Return the containers of a replica, those that start first before the others."""
    spec = pod_spec(objects)
    return [*spec["initContainers"], *spec["containers"]]


def pod_spec(objects: dict[Key, Object]) -> Object:
    """Return the pod that the stateful set makes."""
    spec: Object = objects["StatefulSet", "viewstamp"]["spec"]["template"]["spec"]
    return spec


def coordinator(objects: dict[Key, Object]) -> Object:
    """Return the one container that is not a sidecar."""
    (container,) = pod_spec(objects)["containers"]
    found: Object = container
    return found


def arguments(container: Object, replica: int) -> list[str]:
    """Return a container's arguments as Kubernetes expands them in the pod with that number."""
    fields = {
        "metadata.name": f"viewstamp-{replica}",
        "metadata.namespace": NAMESPACE,
        "metadata.labels['apps.kubernetes.io/pod-index']": str(replica),
    }
    values = {}
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        reference = source.get("configMapKeyRef", {"optional": True})
        if "fieldRef" in source:
            values[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif not reference.get("optional", False):
            values[variable["name"]] = _config_maps()[reference["name"], reference["key"]]
    return [
        re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], text) for text in container["args"]
    ]


@cache
def _config_maps() -> dict[tuple[str, str], str]:
    """Return the values of every overlay's settings, and of what the operator creates."""
    found = dict(CONFIG_MAPS)
    for name in (*OVERLAYS, APART, GROWN, RESTORING):
        config_map = settings(overlay(name))
        for key, value in config_map["data"].items():
            found[config_map["metadata"]["name"], key] = value
    return found


def module(container: Object) -> str:
    """Return the Python module that a container runs."""
    python, option, name = container["command"]
    assert (python, option) == ("python", "-m")
    found: str = name
    return found


def flag(container: Object, name: str) -> str:
    """Return the value of a flag that stands once among a container's arguments."""
    prefix = f"--{name}="
    (value,) = [arg.removeprefix(prefix) for arg in container["args"] if arg.startswith(prefix)]
    found: str = value
    return found


def mounts(container: Object) -> dict[str, Any]:
    """Return the names of volumes by the path at which a container sees them."""
    return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}


def volume_at(container: Object, path: str) -> str | None:
    """Return the volume in which a container's path lies, None if it is in the image."""
    found = [
        name for mount, name in mounts(container).items() if f"{path}/".startswith(f"{mount}/")
    ]
    return found[0] if found else None
