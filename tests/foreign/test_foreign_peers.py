"""Programs that know HTTP/2 and no gRPC judge our server: h2spec by rules, nghttp2 by load."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest

from tests.foreign.languages import run
from tests.foreign.serving import python_server, serving
from viewstamp.transports import WIRE
from viewstamp.wire.messages import prefixed

pytestmark = pytest.mark.foreign

H2SPEC: Final = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
# Rules that it judges by RFC 7540 or by what our server is not, each with the reason.
NOT_KEPT: Final = {
    (
        "generic/2",
        "Sends a WINDOW_UPDATE frame on half-closed (remote) stream",
    ): "it waits for the page that a GET is answered with; here that is a status alone",
    (
        "generic/2",
        "Sends a PRIORITY frame on half-closed (remote) stream",
    ): "the same",
    (
        "http2/5.1.2",
        "Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded",
    ): "each GET is answered at once, so that no two are open",
    (
        "http2/5.3.1",
        "Sends HEADERS frame that depend on itself",
    ): "RFC 9113, section 5.3.2, has no priorities any more",
    (
        "http2/5.3.1",
        "Sends PRIORITY frame that depend on itself",
    ): "the same",
}
# Each GET is answered and its stream reset at once. What h2spec sends a moment later is of a stream
# that is closed, and means nothing any more. So a rule is broken if it is found broken each time.
JUDGEMENTS: Final = 3
JUDGED_MIN: Final = 140
CALLS: Final = 20_000


@pytest.fixture(scope="module")
def h2spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build h2spec."""
    directory = tmp_path_factory.mktemp("h2spec")
    run(("go", "install", H2SPEC), directory, {"GOBIN": str(directory)})
    return directory / "h2spec"


def found_broken(h2spec: Path, told: Path, address: str) -> set[tuple[str | None, str | None]]:
    """Return the rules that h2spec finds broken."""
    host, _, port = address.rpartition(":")
    subprocess.run(
        [h2spec, "-h", host, "-p", port, "--path", "/test.Echo/Echo", "-j", told],
        capture_output=True,
        check=False,
    )
    cases = list(ElementTree.parse(told).iter("testcase"))
    assert len(cases) > JUDGED_MIN
    failed = [case for case in cases if case.find("error") is not None]
    return {(case.get("package"), case.get("classname")) for case in failed}


def test_an_outside_judge_of_rules(h2spec: Path, tmp_path: Path) -> None:
    """Of all rules that h2spec asks a server for, exactly those of the table are not kept."""
    with serving(python_server(WIRE), tmp_path) as (plain, _):
        found = [found_broken(h2spec, tmp_path / "told.xml", plain) for _ in range(JUDGEMENTS)]
    assert set.intersection(*found) == set(NOT_KEPT)


def test_a_foreign_load(tmp_path: Path) -> None:
    """nghttp2's load of many connections and streams is answered, each call of it."""
    assert shutil.which("h2load"), "install the Debian package `nghttp2-client`"
    body = tmp_path / "body"
    body.write_bytes(prefixed(bytes(100)))
    fields = ("-H", "content-type: application/grpc", "-H", "te: trailers")
    load = ("-n", str(CALLS), "-c", "20", "-m", "50", "-d", str(body))
    with serving(python_server(WIRE), tmp_path) as (plain, _):
        said = run(("h2load", *load, *fields, f"http://{plain}/test.Echo/Echo"), tmp_path)
    assert re.search(rf"{CALLS} succeeded, 0 failed, 0 errored, 0 timeout", said), said
    assert re.search(rf"status codes: {CALLS} 2xx", said), said
