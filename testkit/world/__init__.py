"""Whole clusters of the real programs on one deterministic event loop: one seed is one run."""
