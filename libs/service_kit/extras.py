"""A program whose libraries are an extra of the distribution names what is missing."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TRAIN: Final = ("torch", "transformers", "peft", "safetensors", "numpy")


@contextmanager
def needs_train(program: str) -> Iterator[None]:
    """Around the imports of a program: exits with 2 and one sentence where the extra `train` is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _TRAIN:
            raise
        print(
            f"{program} needs {error.name}, which is missing; in a checkout: pip install ./libs '.[train]'",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
