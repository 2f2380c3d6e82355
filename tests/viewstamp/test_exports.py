"""The names in `import viewstamp`, and the modules that it loads."""

from __future__ import annotations

import subprocess
import sys

import viewstamp
from viewstamp import client
from viewstamp.api.errors.v1.errors_pb2 import Reason


def test_what_a_program_needs_is_at_the_top() -> None:
    """Connecting, levels of reads and every exception but the raw protocol's are found there."""
    raised = {name for name in client.__all__ if isinstance(getattr(client, name), type)}
    errors = {name for name in raised if issubclass(getattr(client, name), Exception)}
    assert errors - set(viewstamp.__all__) == {"ProtocolError"}
    assert {"connect", "Client", "at_least", "STALE", "LINEARIZABLE"} <= set(viewstamp.__all__)
    assert set(viewstamp.__all__) <= set(dir(viewstamp))
    for name in viewstamp.__all__:
        assert getattr(viewstamp, name) is getattr(client, name)


def test_the_package_loads_nothing_by_itself() -> None:
    """Servers import the package, too: the client comes with the first use of one of its names."""
    code = "import sys, viewstamp; print('grpc' in sys.modules, 'viewstamp.client' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]


def test_a_refusal_shows_its_reason_by_name() -> None:
    """In a traceback and a debugger the reason is a name and not a number."""
    refusal = viewstamp.Refusal(Reason.REASON_STREAM_EXISTS, "taken")
    assert repr(refusal) == "Refusal(STREAM_EXISTS, 'taken')"
