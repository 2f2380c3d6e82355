"""Links between real replicas are cut, one way or both: nothing acknowledged is lost or doubled.

The test uses network namespaces where this user may make them, and proxies elsewhere; a line says
which. One scenario uses proxies everywhere.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from testkit.links import behind_proxies
from tests.replicas.cut_links import REPLICAS, SCENARIOS, primary_is_cut_off, run
from tests.replicas.links import can_make_namespaces, in_new_namespace

pytestmark = pytest.mark.long

TIMEOUT_S: Final = 200


@pytest.fixture(scope="module")
def namespaces() -> bool:
    """Whether this user can make network namespaces here."""
    return can_make_namespaces()


# One of them is for `make test-long`; `make test-replicas` runs all.
OFTEN: Final = "primary_is_cut_off"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == OFTEN else pytest.mark.exhaustive)
        for name in SCENARIOS
    ],
)
async def test_cut_links(tmp_path: Path, namespaces: bool, name: str) -> None:
    """One history explains what all callers saw, and all replicas reach the same state."""
    print(f"links are cut by {'network namespaces' if namespaces else 'proxies'}")
    if namespaces:
        run_in_namespace(name, tmp_path)
    else:
        await run(SCENARIOS[name], behind_proxies(tmp_path, REPLICAS))


def run_in_namespace(name: str, directory: Path) -> None:
    """Run a scenario in a network namespace of its own; it must exit with 0."""
    command = [sys.executable, "-m", "tests.replicas.cut_links", name, str(directory)]
    done = subprocess.run(
        in_new_namespace(*command), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
async def test_cut_links_behind_proxies(tmp_path: Path) -> None:
    """Links can be cut by proxies, too."""
    await run(primary_is_cut_off, behind_proxies(tmp_path, REPLICAS))
