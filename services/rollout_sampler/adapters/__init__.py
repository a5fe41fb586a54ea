"""One technology per file."""
