"""What refusals say to people: texts made at the edge, from a reason, a case and details.

Replicas log why something was refused as data alone. `render` turns that into words wherever
somebody reads it: in the gateway's answers, and in the client, should an answer come without them.
So a build may change its words, and another Python may quote names differently, without replicas
diverging.
"""

from __future__ import annotations

from viewstamp.texts.rendering import clipped, render

__all__ = ["clipped", "render"]
