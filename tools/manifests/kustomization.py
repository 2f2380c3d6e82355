"""Runs the real kustomize."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from tools.manifests.features import Features, components

Objects: TypeAlias = dict[tuple[str, str], dict[str, Any]]
TIMEOUT_S: Final = 120
# What kustomize appends to the names of ConfigMaps.
_CHECKSUM: Final = re.compile(r"(viewstamp-settings)-[0-9a-z]{10}")


class RenderError(Exception):
    """A tool refused; the message is its own."""


def run(*command: str) -> str:
    """Return what a tool prints. Raises RenderError if it fails or is not there."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError as error:
        raise RenderError(
            f"{command[0]} is not there: run `make test-deploy`, which builds it"
        ) from error
    if done.returncode:
        raise RenderError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def built(kustomize: str, directory: Path) -> str:
    """Return what kustomize makes of a directory. Raises RenderError."""
    return run(kustomize, "build", str(directory))


def objects_of(text: str) -> Objects:
    """Return the objects of a YAML stream by kind and name."""
    found = {}
    # Without the library in C this takes most of the time of a rendering.
    for loaded in yaml.load_all(text, yaml.CSafeLoader):
        if loaded is not None:
            key = loaded["kind"], loaded["metadata"]["name"]
            if key in found:
                raise RenderError(f"{key} is there twice")
            found[key] = loaded
    return found


def variant(kustomize: str, deploy: Path, chosen: Features) -> Objects:
    """Return the objects that the base and the components of some features make.

    The name of the ConfigMap is without its checksum. Raises RenderError.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name).resolve()
        root = os.path.relpath(deploy.resolve(), directory)
        kustomization: Mapping[str, Any] = {
            "namespace": "viewstamp",
            "resources": [f"{root}/base"],
            "components": [f"{root}/components/{each}" for each in components(chosen)],
        }
        (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return objects_of(_CHECKSUM.sub(r"\1", built(kustomize, directory)))
