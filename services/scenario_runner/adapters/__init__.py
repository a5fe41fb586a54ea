"""One technology per module."""
