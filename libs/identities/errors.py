"""What the names in this library refuse."""


class InvalidIdentity(ValueError):
    """A name cannot become an id, a subject or a key, or a text is not one of ours."""
