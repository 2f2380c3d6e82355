"""Whole clusters in one process, where one seed decides everything."""
