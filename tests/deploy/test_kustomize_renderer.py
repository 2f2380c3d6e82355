"""The small renderer does what the real kustomize does, or reports an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kustomize import RenderError, load_objects, render
from tests.deploy.pod import OVERLAYS

ROOT = Path(__file__).resolve().parents[2]
RENDERED = Path(__file__).with_name("rendered")

CONFIG = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "1"}}


@pytest.mark.parametrize(
    "directory",
    ["base", *(f"overlays/{name}" for name in OVERLAYS)],
    ids=lambda path: path,
)
def test_renders_as_kustomize_does(directory: str) -> None:
    """Each directory renders to the objects that kustomize 5.5.0 wrote (docs/operations.md)."""
    expected = load_objects((RENDERED / f"{Path(directory).name}.yaml").read_text())

    actual = render(ROOT / "deploy" / directory)

    assert actual == expected


def _directory(path: Path, kustomization: dict[str, Any], **files: Any) -> Path:
    path.mkdir(exist_ok=True)
    (path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    (path / "one.yaml").write_text(yaml.safe_dump(CONFIG))
    for name, content in files.items():
        (path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return path


@pytest.mark.parametrize(
    ("operation", "data"),
    [
        ({"op": "add", "path": "/data/b", "value": "2"}, {"a": "1", "b": "2"}),
        ({"op": "replace", "path": "/data/a", "value": "2"}, {"a": "2"}),
        ({"op": "remove", "path": "/data/a"}, {}),
        ({"op": "test", "path": "/data/a", "value": "1"}, {"a": "1"}),
        ({"op": "add", "path": "/data/x~1y~0z", "value": "2"}, {"a": "1", "x/y~z": "2"}),
    ],
)
def test_json_patch_operations(
    tmp_path: Path, operation: dict[str, Any], data: dict[str, str]
) -> None:
    """Each known operation of RFC 6902 changes an object as the RFC says."""
    patches = [{"path": "patch.yaml", "target": {"kind": "ConfigMap"}}]
    directory = _directory(
        tmp_path, {"resources": ["one.yaml"], "patches": patches}, patch=[operation]
    )

    actual = render(directory)

    assert actual["ConfigMap", "one"]["data"] == data


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/data/a", "value": "2"},
        {"op": "replace", "path": "/data/b", "value": "2"},
        {"op": "remove", "path": "/data/b"},
        {"op": "add", "path": "/absent/b", "value": "2"},
        {"op": "move", "path": "/data/b", "from": "/data/a"},
    ],
)
def test_impossible_operations_are_refused(tmp_path: Path, operation: dict[str, Any]) -> None:
    """An operation that is impossible or unknown ends the rendering."""
    patches = [{"path": "patch.yaml", "target": {"kind": "ConfigMap", "name": "one"}}]
    directory = _directory(
        tmp_path, {"resources": ["one.yaml"], "patches": patches}, patch=[operation]
    )

    with pytest.raises(RenderError):
        render(directory)


def _named(kind: str, name: str, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}, **fields}


@pytest.mark.parametrize(
    ("kustomization", "complaint"),
    [
        ({"configMapGenerator": []}, "beyond this renderer"),
        ({"resources": ["one.yaml", "one.yaml"]}, "twice"),
        ({"patches": [{"path": "absent.yaml"}]}, "does not exist"),
        (
            {"patches": [{"path": "absent.yaml", "target": {"labelSelector": "a=b"}}]},
            "only kind and name",
        ),
        ({"patches": [{"path": "deletes.yaml"}]}, "directives"),
        ({"patches": [{"path": "volumes.yaml"}]}, "JSON 6902"),
        ({"labels": [{"pairs": {}, "includeSelectors": True}]}, "on objects alone"),
        ({"resources": ["space.yaml"], "namespace": "two"}, "but it makes"),
    ],
)
def test_what_it_does_not_know_is_refused(
    tmp_path: Path, kustomization: dict[str, Any], complaint: str
) -> None:
    """The renderer refuses an unknown feature by name, and never ignores it."""
    directory = _directory(
        tmp_path,
        {"resources": ["one.yaml"], **kustomization},
        absent=_named("ConfigMap", "absent"),
        deletes=_named("ConfigMap", "one", data=None),
        volumes=_named("ConfigMap", "one", volumes=[]),
        space=_named("Namespace", "one"),
    )

    with pytest.raises(RenderError, match=complaint):
        render(directory)
