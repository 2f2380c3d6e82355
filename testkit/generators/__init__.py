"""Spans and generations of snapshots, made up from a seed."""
