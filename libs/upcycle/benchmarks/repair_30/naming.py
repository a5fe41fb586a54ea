"""What tasks are called."""

from .drawing import kinds_of
from .libraries import Split


def named(split: Split, number: int) -> tuple[str, str]:
    """(slug, family); the family is the repository."""
    kinds = kinds_of(split)
    library, defects = kinds[number % len(kinds)]
    broken = "-and-".join(one.name.replace(" ", "-") for one in defects)
    return f"{library.name}-{broken}-{number:03d}", library.name
