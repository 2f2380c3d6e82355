"""`python -m testkit.http2`: hold random conversations until so many frames were heard.

Exit code: 0 if every rule was kept, 1 if not; the message names the seed, and `--seed N --frames 1`
begins with it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from testkit.http2.chunks import chunks
from testkit.http2.conversation import BrokenRuleError

FRAMES: Final = 10_000_000
PROCESSES: Final = 2
EXIT_KEPT: Final = 0
EXIT_BROKEN: Final = 1


def main(arguments: list[str] | None = None) -> int:
    """Hold conversations, show how far it is, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m testkit.http2", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the first one (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=FRAMES, help="default: %(default)s")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="default: %(default)s")
    options = parser.parse_args(arguments)
    console = Console(highlight=False)
    columns = (BarColumn(), TextColumn("{task.completed:,} of {task.total:,} frames"))
    conversations = failures = heard = 0
    try:
        with Progress(
            *columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console
        ) as progress:
            task = progress.add_task("", total=options.frames)
            for figures in chunks(options.seed, options.frames, options.processes):
                heard += figures.frames
                conversations += figures.conversations
                failures += figures.failures
                progress.update(task, completed=heard)
    except BrokenRuleError as error:
        console.print(f"[red]a rule was broken[/red]: {error}")
        return EXIT_BROKEN
    console.print(
        f"{heard:,} frames in {conversations:,} conversations; {failures:,} ends failed their"
        " connections, each after its way had changed bytes: [green]every rule was kept"
    )
    return EXIT_KEPT


if __name__ == "__main__":
    sys.exit(main())
