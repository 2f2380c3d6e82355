"""Builds the images, says what is in them, and refuses what should not be in them."""
