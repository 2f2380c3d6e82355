"""Why a topology cannot be read, planned or applied. A decision of the cluster is a `Refusal`."""

from __future__ import annotations

from collections.abc import Sequence


class TopologyError(Exception):
    """The base class of the errors of this package."""


class PlanRefused(TopologyError):  # noqa: N818 - reads as the sentence it is
    """A plan that cannot be applied; `problems` say why."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(problems))


class PlanChanged(TopologyError):  # noqa: N818 - reads as the sentence it is
    """The cluster has changed, and the plan now destroys what nobody has approved."""


class NotAtomic(TopologyError):  # noqa: N818 - reads as the sentence it is
    """The changes do not fit into one transaction, and one was demanded."""


class ClusterUnsettled(TopologyError):  # noqa: N818 - reads as the sentence it is
    """The cluster changed at every attempt to read it or to change it."""


class PasswordsNeeded(TopologyError):  # noqa: N818 - reads as the sentence it is
    """New users need passwords, and there is no file that has them or can keep them."""
