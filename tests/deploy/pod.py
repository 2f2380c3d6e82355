"""Queries about the rendered pod, for tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from tests.deploy.kustomize import Key, Object, render
from viewstamp.routing import SERVICE_NAMES

ROOT: Final = Path(__file__).resolve().parents[2]
LONE: Final = ("local", "production")
REPLICATED: Final = "replicated"
OVERLAYS: Final = (*LONE, REPLICATED)
SIDECARS: Final = tuple(name.replace("_", "-") for name in SERVICE_NAMES)
# Kubernetes starts native sidecars by itself from this version on.
KUBERNETES_MIN: Final = "1.29"
NAMESPACE: Final = "viewstamp"
CLUSTER_ID: Final = "ab" * 16
# Values that the operator creates: (config map, key) -> value.
CONFIG_MAPS: Final = {("viewstamp-cluster", "cluster-id"): CLUSTER_ID}


def overlay(name: str) -> dict[Key, Object]:
    """Return the objects of an overlay."""
    return render(ROOT / "deploy" / "overlays" / name)


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
        source = variable["valueFrom"]
        if "fieldRef" in source:
            values[variable["name"]] = fields[source["fieldRef"]["fieldPath"]]
        else:
            reference = source["configMapKeyRef"]
            values[variable["name"]] = CONFIG_MAPS[reference["name"], reference["key"]]
    return [
        re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], text) for text in container["args"]
    ]


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
