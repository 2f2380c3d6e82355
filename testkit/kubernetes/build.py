"""Build the programs of a Kubernetes cluster from their published Go modules.

The first build takes about 15 minutes of two processors; a program that is there is left alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

_SOURCES: Final = Path(__file__).parent / "programs"
VERSION: Final = "v1.36.3"
_MAJOR, _MINOR = VERSION.removeprefix("v").split(".")[:2]
_CLUSTER_PROGRAMS: Final = (
    *("kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler"),
    *("kubelet", "kube-proxy"),
)
_ADDON_PROGRAMS: Final = {
    "names": "./names",
    "kube-network-policies": "sigs.k8s.io/kube-network-policies/cmd",
    "local-path-provisioner": "github.com/rancher/local-path-provisioner",
    "certificates": "./certificates",
}
# Modules whose definitions of custom resources the manifests use, and where these lie.
_DEFINITIONS: Final = {
    "github.com/cert-manager/cert-manager@v1.21.2": "deploy/crds",
    "github.com/prometheus-operator/prometheus-operator@v0.85.0": "example/prometheus-operator-crd",
}
# Programs take their version from here; without it they call themselves v0.0.0.
_STAMPS: Final = {
    "gitVersion": VERSION,
    "gitMajor": _MAJOR,
    "gitMinor": _MINOR,
}
_STAMPED_PACKAGES: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def build(directory: Path) -> None:
    """Build what a directory lacks. Raises CalledProcessError; Go has told why."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in _CLUSTER_PROGRAMS:
        _build(directory / name, "cluster", f"k8s.io/kubernetes/cmd/{name}", _linker_flags())
    for name, package in _ADDON_PROGRAMS.items():
        _build(directory / name, "addons", package, "-s -w")
    _copy_definitions(directory / "definitions")


def _build(target: Path, module: str, package: str, linker_flags: str) -> None:
    if target.exists():
        return
    print(f"building {target.name}", flush=True)
    # A name of its own until it is whole: a build may be interrupted.
    partial = target.with_suffix(".partial")
    flags = ("-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags", linker_flags)
    _go(module, "build", *flags, "-o", str(partial), package)
    partial.rename(target)


def _linker_flags() -> str:
    stamps = [
        f"-X {package}.{name}={value}"
        for package in _STAMPED_PACKAGES
        for name, value in _STAMPS.items()
    ]
    return " ".join(["-s -w", *stamps])


def _copy_definitions(target: Path) -> None:
    target.mkdir(exist_ok=True)
    for module, place in _DEFINITIONS.items():
        found = json.loads(_go("addons", "mod", "download", "-json", module))
        for file in sorted((Path(found["Dir"]) / place).glob("*.yaml")):
            shutil.copyfile(file, target / file.name)


def _go(module: str, *words: str) -> str:
    done = subprocess.run(
        ["go", *words],
        cwd=_SOURCES / module,
        env={**os.environ, "CGO_ENABLED": "0"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
