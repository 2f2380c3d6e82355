"""Write what is made from `deploy/`, or check that the committed files are what would be written.

    python -m tools.manifests [--check] [--kustomize PATH]

Beside the chart these are the renderings in `deploy/rendered`, which tests read, and their list of
sources: `make test`, which has no kustomize, sees by it that they are of these sources.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Final

import yaml

from tools.manifests.chart import HEADER, chart_files
from tools.manifests.kustomization import RenderError, built
from tools.manifests.merging import MergeError

ROOT: Final = Path(__file__).resolve().parents[2]
RENDERED: Final = (
    "namespace",
    "base",
    "overlays/local",
    "overlays/production",
    "overlays/replicated",
    "overlays/apart",
    "overlays/grown",
    "overlays/restoring",
)
SOURCES: Final = ("base", "components", "monitoring", "namespace", "overlays", "restore")
SUMS: Final = Path("rendered", "sources.sha256")
# Prometheus' own rules, and the custom resource that has them, which is rendered like a source.
ALERTS: Final = Path("monitoring", "alerts.yaml")
RULE: Final = Path("components", "prometheus-operator", "prometheus-rule.yaml")
# Of the chart; every other file in it is made.
WRITTEN_BY_HAND: Final = frozenset({Path("Chart.yaml"), Path("templates", "_image.tpl")})


def sums(deploy: Path) -> str:
    """Return the checksum of each file that manifests are made of, a line each."""
    paths = sorted(path for name in SOURCES for path in (deploy / name).rglob("*"))
    return "".join(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(deploy)}\n"
        for path in paths
        if path.is_file()
    )


def rule(deploy: Path) -> str:
    """Return the PrometheusRule of the alerts."""
    labels = {"app.kubernetes.io/name": "viewstamp", "app.kubernetes.io/component": "replica"}
    document = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "viewstamp", "labels": labels},
        "spec": yaml.safe_load((deploy / ALERTS).read_text()),
    }
    return HEADER + yaml.safe_dump(document, sort_keys=False, width=1_000)


def files(kustomize: str, deploy: Path) -> dict[Path, str]:
    """Return all files that are made, by their paths below `deploy`. Raises RenderError,
    MergeError."""
    rendered = {
        Path("rendered", f"{Path(name).name}.yaml"): built(kustomize, deploy / name)
        for name in RENDERED
    }
    chart = {Path("chart", path): text for path, text in chart_files(kustomize, deploy).items()}
    return {**rendered, **chart, RULE: rule(deploy), SUMS: sums(deploy)}


def present(deploy: Path) -> set[Path]:
    """Return the files that are there and look as if they had been made."""
    chart = {path.relative_to(deploy / "chart") for path in (deploy / "chart").rglob("*.*")}
    rendered = {path.relative_to(deploy) for path in (deploy / "rendered").glob("*")}
    rules = {RULE} if (deploy / RULE).exists() else set()
    return rendered | rules | {Path("chart", path) for path in chart - WRITTEN_BY_HAND}


def differences(deploy: Path, made: dict[Path, str]) -> list[str]:
    """Return a line for each file that is not what it would be."""
    there = present(deploy)
    wrong = [
        f"{path}: differs"
        for path, text in made.items()
        if path in there and (deploy / path).read_text() != text
    ]
    missing = [f"{path}: is missing" for path in made.keys() - there]
    return [*wrong, *missing, *(f"{path}: nothing makes it" for path in there - made.keys())]


def write(deploy: Path, made: dict[Path, str]) -> None:
    """Write all files, and remove what nothing makes."""
    for path in present(deploy) - made.keys():
        (deploy / path).unlink()
    for path, text in made.items():
        (deploy / path).parent.mkdir(parents=True, exist_ok=True)
        (deploy / path).write_text(text)


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code: 0 if all is as it should be, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tools.manifests")
    parser.add_argument("--check", action="store_true", help="write nothing, and name what differs")
    parser.add_argument(
        "--kustomize", default="kustomize", help="the program (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    deploy = ROOT / "deploy"
    try:
        if not options.check:
            # Everything else is rendered with it.
            (deploy / RULE).write_text(rule(deploy))
        made = files(options.kustomize, deploy)
    except (RenderError, MergeError) as error:
        print(f"manifests: {error}", file=sys.stderr)
        return 1
    if not options.check:
        write(deploy, made)
        return 0
    found = differences(deploy, made)
    for line in found:
        print(f"manifests: deploy/{line}; run `make manifests`", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
