"""Bugs that are planted in the product, so that checkers and judges show that they can fail."""
