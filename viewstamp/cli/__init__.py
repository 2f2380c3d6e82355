"""The command line: `viewstamp --help`."""

from __future__ import annotations

import gc
import sys
from typing import Final

EXIT_INTERRUPTED: Final = 130

# Modules make many objects and no garbage: as often as by default the collector looks in vain.
OBJECTS_PER_COLLECTION: Final = 100_000

# Modules that a client does without, and the extra that brings them.
EXTRAS: Final = {"prometheus_client": "server", "zstandard": "server"}


def main() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(OBJECTS_PER_COLLECTION)
    try:
        from viewstamp.cli.app import app

        app(prog_name="viewstamp")
    except KeyboardInterrupt:  # while modules were loaded
        sys.exit(EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        _name_extra(error)


def _name_extra(error: ModuleNotFoundError) -> None:
    """Tell which extra brings the module that is missing, and exit. Raises what none brings."""
    extra = EXTRAS.get((error.name or "").partition(".")[0])
    if extra is None:
        raise error
    from viewstamp.cli.settings import EXIT_USAGE, Settings, tell

    settings = Settings(as_json="--json" in sys.argv[1:])
    step = f"install the extra `{extra}`: pip install 'viewstamp[{extra}]'"
    tell(settings, "EXTRA_MISSING", f"this command needs {error.name}, which is not here", step)
    sys.exit(EXIT_USAGE)


__all__ = ["main"]
