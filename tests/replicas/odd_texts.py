"""A program of another build, with other texts for every refusal.

`python -m tests.replicas.odd_texts MODULE FLAGS...`, for a coordinator and for services.
"""

from __future__ import annotations

import runpy
import sys
from typing import Final

from viewstamp.texts import general, table

PREFIX: Final = "in other words: "

if __name__ == "__main__":
    for module, name in ((table, "TEXTS"), (general, "GENERAL")):
        texts = {key: PREFIX + text for key, text in getattr(module, name).items()}
        setattr(module, name, texts)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
