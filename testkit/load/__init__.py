"""Load on a cluster whose processes are killed, and a check of everything that it promised.

Sessions send commands under numbers of their own, again and again until each is answered
(`generator`); every answer goes into a file that belongs to the load alone (`records`). Afterwards
the file is the oracle: the answers must be those of a sequential model that takes the commands in
the order of their revisions, and the model's last state must be what paged reads find (`oracle`).
`trial` does all of it on a local cluster, with kills, and compares with a replay from scratch.
"""

from __future__ import annotations

from testkit.load.oracle import Violation
from testkit.load.trial import LoadTrial, TrialOptions, TrialReport

__all__ = ["LoadTrial", "TrialOptions", "TrialReport", "Violation"]
