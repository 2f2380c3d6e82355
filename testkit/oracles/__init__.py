"""Judges of histories: whether some order of the calls explains every answer."""
