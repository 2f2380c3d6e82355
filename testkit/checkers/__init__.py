"""Promises of a cluster, checked at every step of a run, whichever simulator runs it."""
