"""The packages that only this benchmark needs."""

from functools import cache
from importlib.util import find_spec
from typing import Final

from .errors import ExtraMissing

_PACKAGES: Final = ("openpyxl", "formulas")


@cache
def need_extra() -> None:
    """Raises ExtraMissing, which says what to install."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise ExtraMissing(
            f"benchmark sheet-50 needs {' and '.join(missing)}, not installed here",
            "pip install 'upcycle[benchmarks]' (in a checkout: pip install './libs[benchmarks]')",
        )
