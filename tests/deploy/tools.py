"""The real tools of Kubernetes, as `make test-deploy` builds and names them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tests.deploy.pod import ROOT
from tools.manifests.features import Features
from tools.manifests.kustomization import Objects, objects_of, run

CHART: Final = ROOT / "deploy" / "chart"
# Helm takes Kubernetes for very old where it is built without a release's flags.
KUBERNETES: Final = "1.37.0"


def tool(name: str) -> str:
    """Return the path of a tool. Raises AssertionError, since a test without it proves nothing."""
    path = os.environ.get(name.upper(), "")
    assert path, f"{name.upper()} must name the program {name}: run `make test-deploy`"
    return path


def charted(*values: str, kubeconfig: Path | None = None) -> str:
    """Return what helm makes of the chart with values, each NAME=VALUE. Raises RenderError.

    With a file that names a cluster helm asks that, as it does when it installs.
    """
    settings = [word for value in values for word in ("--set", value)]
    if kubeconfig is not None:
        settings += ["--dry-run=server", "--kubeconfig", str(kubeconfig)]
    return run(
        *(tool("helm"), "template", "viewstamp", str(CHART), "--namespace", "viewstamp"),
        *("--kube-version", KUBERNETES, *settings),
    )


def charted_objects(*values: str) -> Objects:
    """Return the objects of the chart with values. Raises RenderError."""
    return objects_of(charted(*values))


def values_of(chosen: Features) -> list[str]:
    """Return the values that turn features on."""
    count = 5 if "five" in chosen else 3 if "several" in chosen else 1
    switches = sorted(chosen - {"several", "five"})
    return [f"replicas={count}", *(f"{name}.enabled=true" for name in switches)]
