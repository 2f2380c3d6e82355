"""The operations manual agrees with the code, where a machine can compare them."""

from __future__ import annotations

import re

import pytest

import coordinator.app.main as coordinator_process
from coordinator.journal.journal import SEGMENT_BYTES, SPARE_SEGMENTS
from services.runtime import probe
from services.runtime import process as service_process
from tests.deploy.pod import KUBERNETES_MIN, OVERLAYS, ROOT, overlay, pod_spec
from viewstamp.limits import MIB

MANUAL = (ROOT / "docs" / "operations.md").read_text()


def test_exit_codes_are_those_of_the_processes() -> None:
    """The table of exit codes lists each code of each process, and no other."""
    rows = re.findall(r"^\| (coordinator|domain service|probe) \| (\d+) \|", MANUAL, re.MULTILINE)
    modules = {
        "coordinator": coordinator_process,
        "domain service": service_process,
        "probe": probe,
    }

    documented = {(process, int(code)) for process, code in rows}

    assert documented == {
        (process, value)
        for process, module in modules.items()
        for name, value in vars(module).items()
        if name.startswith("EXIT_")
    }


def test_links_lead_somewhere() -> None:
    """Every link inside the manual leads to a heading, and every relative one to a file."""
    headings = re.findall(r"^#+ (.*)$", MANUAL, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    targets = re.findall(r"\]\(([^)]+)\)", MANUAL)
    assert {bool(target.partition("#")[0]) for target in targets} == {True, False}
    for target in targets:
        path, _, anchor = target.partition("#")
        if path:
            assert (ROOT / "docs" / path).exists(), target
        else:
            assert anchor in anchors, target


@pytest.mark.parametrize("name", OVERLAYS)
def test_names_of_the_overlays_are_explained(name: str) -> None:
    """The manual names each overlay, and each secret that it needs."""
    volumes = pod_spec(overlay(name))["volumes"]
    secrets = [volume["secret"]["secretName"] for volume in volumes if "secret" in volume]

    assert f"deploy/overlays/{name}" in MANUAL
    assert all(f"`{secret}`" in MANUAL for secret in secrets)


def test_numbers_are_those_of_the_code() -> None:
    """The sizes and versions that the manual names are those of the code."""
    segment_mib = SEGMENT_BYTES // MIB
    bootstrap_mib = segment_mib * (1 + SPARE_SEGMENTS)

    assert f"segments of {segment_mib} MiB" in MANUAL
    assert f"needs {bootstrap_mib} MiB" in MANUAL
    assert f"Kubernetes {KUBERNETES_MIN} or newer" in MANUAL
