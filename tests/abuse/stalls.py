"""Stalls of the machine: how long the coordinators waited for a processor.

A view changes if heartbeats do not come for a while. If a coordinator had work but got no processor
for that long, the change shows nothing about the coordinator. The kernel counts this time for each
thread, without the time that a coordinator sleeps or works.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from viewstamp.limits import SUSPICION_JITTER_MS, SUSPICION_MS

SAMPLE_MS: Final = 50
KEPT_MS: Final = 10_000
# A backup waits for its primary no longer than this.
WINDOW_MS: Final = SUSPICION_MS + SUSPICION_JITTER_MS
# A step of a coordinator's loop needs a processor no longer than this.
STEP_MS: Final = 50
# A coordinator that waited this long for a processor explains a backup's suspicion.
EXCUSE_MS: Final = SUSPICION_MS - STEP_MS
_NS_PER_MS: Final = 1_000_000

# Milliseconds that each process waited for a processor since it began, by name.
Waited = Mapping[str, float]


class Stalls:
    """Samples in its own thread how long processes waited for a processor."""

    def __init__(self, waited: Callable[[], Waited]) -> None:
        """Sample what `waited` returns, once started."""
        self._waited = waited
        self._samples: deque[tuple[float, Waited]] = deque(maxlen=KEPT_MS // SAMPLE_MS)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stalls", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._is_over.set()
        self._thread.join()

    def sample(self, now_ms: float) -> None:
        """Record how long each process has waited until now."""
        self._samples.append((now_ms, self._waited()))

    def excuse(self, since_ms: float) -> str:
        """Return how the machine stalled since that time or shortly before; empty if it did not."""
        samples = [each for each in list(self._samples) if each[0] >= since_ms - WINDOW_MS]
        worst_ms, worst = 0.0, ""
        for index, (begun_ms, before) in enumerate(samples):
            for ended_ms, after in samples[index + 1 :]:
                for name in before.keys() & after.keys():
                    waited_ms = after[name] - before[name]
                    if waited_ms > worst_ms:
                        worst_ms, worst = waited_ms, name
                if ended_ms - begun_ms >= WINDOW_MS:
                    break
        if worst_ms < EXCUSE_MS:
            return ""
        return f"{worst} waited {worst_ms:.0f} of about {WINDOW_MS} ms for a processor"

    def _run(self) -> None:
        while not self._is_over.wait(SAMPLE_MS / 1000):
            self.sample(now_ms())


def now_ms() -> float:
    """Return the present time, as samples have it."""
    return time.monotonic() * 1000


def waited_of_main_threads(pids: Mapping[str, int]) -> Waited:
    """Return how long the main thread of each process has waited, without ended processes.

    Raises OSError where the kernel does not count.
    """
    found = {}
    for name, pid in pids.items():
        try:
            text = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found[name] = int(text.split()[1]) / _NS_PER_MS
    return found
