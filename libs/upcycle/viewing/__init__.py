"""A run as a page: read from the platform, or from a file of an evaluation in one process; written whole."""
