"""Campaigns: many seeds or plants, side by side, resumable, and figures of them in pages."""
