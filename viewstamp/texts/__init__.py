"""Texts of refusals for people, made at the edge from a reason, a case and details.

Replicas log why something was refused as data alone. `render` makes the text where somebody reads
it: in the gateway's answers, and in the client if an answer comes without a text. So builds may
differ in their words, and Python versions in their quotes, and replicas do not diverge.
"""

from __future__ import annotations

from viewstamp.texts.rendering import clipped, render

__all__ = ["clipped", "render"]
