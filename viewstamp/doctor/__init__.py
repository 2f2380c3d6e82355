"""`viewstamp doctor`: evidence about a cluster, what is wrong by it, and a bundle for others.

`gathering` collects evidence on this machine, `checks` judges all evidence by a table, `redaction`
takes secrets out, and `bundle` writes what is left. A source that fails is evidence, too, and stops
nothing.
"""

from __future__ import annotations
