"""Renders the part of kustomize that `deploy/` uses, where no kustomize can be installed.

Debian's `kubernetes-client` carries a kustomize from before components existed, and the package
index has none. This module renders resources, components, patches (strategic merge by name, and
JSON 6902), namespace, labels and images, and refuses every other key. The real kustomize wrote the
files in `rendered/`; the tests prove that this module renders the same.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

Object: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str]  # kind and name

_FILE: Final = "kustomization.yaml"
_CLUSTER_SCOPED: Final = frozenset({"Namespace"})
# Strategic merge joins these lists by name here; other lists are replaced whole, or refused.
_MERGED_BY_NAME: Final = frozenset({"containers", "initContainers"})
# Kubernetes would join these by other keys than their names.
_REFUSED_LISTS: Final = frozenset({"volumeMounts", "ports", "env", "volumes", "tolerations"})


class RenderError(Exception):
    """A key that kustomize would refuse, or that this small part of it does not know."""


def render(directory: Path) -> dict[Key, Object]:
    """Return the objects of a base or an overlay by kind and name. Raises RenderError, OSError."""
    objects: dict[Key, Object] = {}
    _accumulate(directory, objects)
    return objects


def load_objects(text: str) -> dict[Key, Object]:
    """Return the objects of a YAML stream by kind and name. Raises RenderError on a duplicate."""
    objects: dict[Key, Object] = {}
    for loaded in yaml.safe_load_all(text):
        _add(objects, loaded)
    return objects


def _accumulate(directory: Path, objects: dict[Key, Object]) -> None:
    """Change the objects as one kustomization says, in the order in which kustomize does it."""
    path = directory / _FILE
    kustomization = yaml.safe_load(path.read_text())
    unknown = kustomization.keys() - {"apiVersion", "kind", "resources", "components", *_STEPS}
    if unknown:
        raise RenderError(f"{path}: {sorted(unknown)} are beyond this renderer; see its docstring")
    for name in (*kustomization.get("resources", []), *kustomization.get("components", [])):
        _include(directory / name, objects)
    for step, transform in _STEPS.items():
        if step in kustomization:
            transform(directory, objects, kustomization[step])


def _include(path: Path, objects: dict[Key, Object]) -> None:
    if path.is_dir():
        _accumulate(path, objects)
        return
    for loaded in yaml.safe_load_all(path.read_text()):
        _add(objects, loaded)


def _add(objects: dict[Key, Object], loaded: Object) -> None:
    key = loaded["kind"], loaded["metadata"]["name"]
    if key in objects:
        raise RenderError(f"{key} is there twice")
    objects[key] = loaded


def _patch(directory: Path, objects: dict[Key, Object], patches: list[Object]) -> None:
    for entry in patches:
        patch = yaml.safe_load((directory / entry["path"]).read_text())
        matched = list(_targets(objects, entry.get("target") or _target_of(patch)))
        if not matched:
            raise RenderError(f"{directory / entry['path']}: its target does not exist")
        for key in matched:
            if isinstance(patch, list):
                for operation in patch:
                    _apply(objects[key], operation)
            else:
                _merge(objects[key], patch)


def _target_of(patch: Object) -> Object:
    return {"kind": patch["kind"], "name": patch["metadata"]["name"]}


def _targets(objects: dict[Key, Object], target: Object) -> Iterator[Key]:
    if target.keys() - {"kind", "name"}:
        raise RenderError(f"target {target}: only kind and name are known here")
    for kind, name in objects:
        if kind == target["kind"] and name == target.get("name", name):
            yield kind, name


def _apply(root: Object, operation: Object) -> None:
    """Apply one operation of RFC 6902. Raises RenderError if it is impossible."""
    *parents, last = [_unescape(part) for part in operation["path"].split("/")[1:]]
    parent: Any = root
    try:
        for part in parents:
            parent = parent[_index(parent, part)]
        _OPERATIONS[operation["op"]](parent, _index(parent, last), operation.get("value"))
    except (KeyError, IndexError, ValueError) as error:
        raise RenderError(f"{operation} cannot be done: {error!r}") from error


def _unescape(part: str) -> str:
    return part.replace("~1", "/").replace("~0", "~")


def _index(parent: Any, part: str) -> Any:
    if isinstance(parent, dict):
        return part
    return len(parent) if part == "-" else int(part)


def _operation_add(parent: Any, index: Any, value: Any) -> None:
    if isinstance(parent, dict):
        parent[index] = copy.deepcopy(value)
    else:
        parent.insert(index, copy.deepcopy(value))


def _operation_remove(parent: Any, index: Any, _: Any) -> None:
    del parent[index]


def _operation_replace(parent: Any, index: Any, value: Any) -> None:
    parent[index]  # A key that is absent cannot be replaced: this raises.
    parent[index] = copy.deepcopy(value)


def _operation_test(parent: Any, index: Any, value: Any) -> None:
    if parent[index] != value:
        raise ValueError(f"it is {parent[index]!r}")


_OPERATIONS: Final[dict[str, Callable[[Any, Any, Any], None]]] = {
    "add": _operation_add,
    "remove": _operation_remove,
    "replace": _operation_replace,
    "test": _operation_test,
}


def _merge(target: Object, patch: Object) -> None:
    """Merge a strategic patch into an object."""
    for name, value in patch.items():
        if value is None or "$patch" in patch:
            raise RenderError(f"{name}: directives of strategic merge are not known here")
        if isinstance(value, dict) and isinstance(target.get(name), dict):
            _merge(target[name], value)
        elif name in _MERGED_BY_NAME:
            _merge_by_name(target[name], value)
        elif name in _REFUSED_LISTS:
            raise RenderError(f"{name}: patch this list by JSON 6902")
        else:
            target[name] = copy.deepcopy(value)


def _merge_by_name(items: list[Object], patches: list[Object]) -> None:
    by_name = {item["name"]: item for item in items}
    for patch in patches:
        if patch["name"] not in by_name:
            raise RenderError(f"{patch['name']} is not there to be patched")
        _merge(by_name[patch["name"]], patch)


def _set_namespace(directory: Path, objects: dict[Key, Object], namespace: str) -> None:
    for (kind, name), found in objects.items():
        if kind not in _CLUSTER_SCOPED:
            found["metadata"]["namespace"] = namespace
        elif kind == "Namespace" and name != namespace:
            raise RenderError(f"{directory}: namespace {namespace}, but it makes {name}")


def _set_labels(directory: Path, objects: dict[Key, Object], labels: list[Object]) -> None:
    for entry in labels:
        if entry.keys() != {"pairs"}:
            raise RenderError(f"{directory}: labels on objects alone are known here")
        for found in objects.values():
            found["metadata"].setdefault("labels", {}).update(entry["pairs"])


def _set_images(directory: Path, objects: dict[Key, Object], images: list[Object]) -> None:
    new = {entry["name"]: f"{entry['newName']}:{entry['newTag']}" for entry in images}
    for container in containers(objects):
        container["image"] = new.get(container["image"].partition(":")[0], container["image"])


def containers(objects: dict[Key, Object]) -> list[Object]:
    """Return the containers of all stateful sets, those that start first before the others."""
    specs = [
        found["spec"]["template"]["spec"]
        for (kind, _), found in objects.items()
        if kind == "StatefulSet"
    ]
    found = [c for spec in specs for c in (*spec.get("initContainers", []), *spec["containers"])]
    assert found, "nothing was rendered: what is checked of every container would hold of none"
    return found


# In the order in which kustomize applies them.
_STEPS: Final[dict[str, Callable[[Path, dict[Key, Object], Any], None]]] = {
    "patches": _patch,
    "namespace": _set_namespace,
    "labels": _set_labels,
    "images": _set_images,
}
