"""Importers: catalogues of other platforms, turned into streams, topics, groups and users.

A catalogue becomes a `ImportPlan` (pure: `viewstamp.importer.wikimedia`), the plan is compared with
what the cluster has, and what is missing is created (`viewstamp.importer.execution`). Importing the
same catalogue again creates nothing.
"""

from __future__ import annotations

from viewstamp.importer.execution import import_plan
from viewstamp.importer.passwords import PasswordFile, PasswordFileError
from viewstamp.importer.plan import CatalogueError, GroupKey, ImportPlan, TopicKey
from viewstamp.importer.report import Counts, Report
from viewstamp.importer.wikimedia import plan_of, read_plan

__all__ = [
    "plan_of",
    "read_plan",
    "import_plan",
    "ImportPlan",
    "TopicKey",
    "GroupKey",
    "Report",
    "Counts",
    "PasswordFile",
    "PasswordFileError",
    "CatalogueError",
]
