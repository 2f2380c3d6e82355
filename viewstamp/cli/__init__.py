"""The command line: `viewstamp --help`."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Final

EXIT_INTERRUPTED: Final = 130

# Loading modules makes many objects and no garbage, so the collector need not look often.
OBJECTS_PER_COLLECTION: Final = 100_000

# Modules that a client does without, and the extra that brings them.
EXTRAS: Final = dict.fromkeys(("opentelemetry", "prometheus_client", "zstandard"), "server")


def main() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    # There is no garbage at the end either, where the interpreter looks at every object twice.
    atexit.register(gc.freeze)
    # The error says more about a failed connection than gRPC's log lines.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Frames and colours are for a terminal; in a pipe, help and errors are plain lines.
    is_terminal = sys.stdout.isatty() and sys.stderr.isatty()
    os.environ.setdefault("TYPER_USE_RICH", str(int(is_terminal)))
    try:
        with _traced():
            from viewstamp.cli.app import app

            app(prog_name="viewstamp")
    except KeyboardInterrupt:  # while modules were loaded
        sys.exit(EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        _name_extra(error)


def _traced() -> AbstractContextManager[object]:
    if not any(name.startswith("OTEL_EXPORTER_OTLP") for name in os.environ):
        return nullcontext()  # Even a closer look takes some time.
    from viewstamp.telemetry.program import traced_program

    return traced_program("viewstamp-cli", "viewstamp")


def _name_extra(error: ModuleNotFoundError) -> None:
    """Name the extra that brings the missing module, and exit. Reraises if no extra brings it."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        raise error
    from viewstamp.cli.settings import EXIT_USAGE, Settings, tell

    settings = Settings(as_json="--json" in sys.argv[1:])
    step = f"install the extra `{extra}`: pip install 'viewstamp[{extra}]'"
    tell(settings, "EXTRA_MISSING", f"this command needs {error.name}, which is not here", step)
    sys.exit(EXIT_USAGE)


__all__ = ["main"]
