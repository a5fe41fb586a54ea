"""Limits of numbers and lists of names, as metadata of a field: `Annotated[int, Limit(1, 8)]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from upcycle.run_config.names import unknown

LARGEST: Final = 1e9
"""Bound of numbers that need none: what is beyond it is a mistake, and what is not finite too."""
MAX_EPISODE_DEADLINE_S: Final = 24 * 3600
MAX_GROUP_SIZE: Final = 1024
MAX_TRAJECTORIES_PER_STEP: Final = 2048
"""The ids of a step's trajectories travel in one event of at most 256 KB."""
MAX_REVIEWED: Final = 200
"""What `upcycle trajectories review --top` shows at most."""
MAX_TRACKED: Final = 16
MAX_MIXED: Final = 16
"""Sets of one training run."""
MAX_TRAINABLE_GROUP: Final = 512
"""A group of an evaluation that may train travels with all its members in one event of at most 256 KB."""
REFUSED: Final = "refused"
"""Type of the pydantic errors whose text is a predicate: the reader puts the field's name before it."""


def shown(value: Any) -> str:
    """A value as a refusal shows it, cut short. Python writes out no huge number, and no very deep table."""
    try:
        text = repr(value)
    except (ValueError, RecursionError) as error:
        text = f"({error})"
    return text if len(text) <= 80 else f"{text[:80]}…"


def refuse(text: str) -> PydanticCustomError:
    """The error of one field. text: what follows the field's name."""
    return PydanticCustomError(REFUSED, "{text}", {"text": text})


class _Checked:
    """A check after pydantic's own of the type."""

    __slots__ = ()

    def complaint(self, value: Any) -> str:
        """What follows the field's name in the refusal; empty where the value fits."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, value: Any) -> Any:
        if text := self.complaint(value):
            raise refuse(text)
        return value


@dataclass(frozen=True, slots=True)
class Limit(_Checked):
    """From low to high. above: low itself does not fit; below: high itself does not. zero_is_off: 0 fits too,
    and switches it off. why: of the limit, where it is not obvious."""

    low: float = -LARGEST
    high: float = LARGEST
    above: bool = False
    below: bool = False
    zero_is_off: bool = False
    why: str = ""

    def holds(self, value: float) -> bool:
        """Whether the value fits. NaN compares false with everything, so it never does."""
        if self.zero_is_off and value == 0:
            return True
        is_low_enough = value < self.high if self.below else value <= self.high
        return is_low_enough and (value > self.low if self.above else value >= self.low)

    @property
    def range_text(self) -> str:
        """The range as people read it."""
        off = "0 (off), or " if self.zero_is_off else ""
        low, high = (">" if self.above else ">="), ("<" if self.below else "<=")
        both = f"{low} {self.low:.7g} and {high} {self.high:.7g}"
        return f"{off}{both if self.low < self.high else f'{self.low:g}'}"

    def complaint(self, value: float) -> str:
        """Limit, value and reason."""
        why = f": {self.why}" if self.why else ""
        got = f"{value:g}" if isinstance(value, float) else shown(value)
        return "" if self.holds(value) else f"must be {self.range_text}, got {got}{why}"

    def refusal(self, name: str, value: float) -> str:
        """Thing, limit, value."""
        return f"{name} {self.complaint(value)}"


@dataclass(frozen=True, slots=True)
class OneOf(_Checked):
    """One of a table of names. or_empty: the empty name too, which leaves the choice to somebody else.
    elsewhere: names that exist and do not fit here, with the reason."""

    names: Sequence[str]
    or_empty: bool = False
    elsewhere: Mapping[str, str] = field(default_factory=dict)

    def complaint(self, value: str) -> str:
        """The name, the nearest one and all."""
        if value in self.names or (self.or_empty and not value):
            return ""
        if value in self.elsewhere:
            return f"{value!r} {self.elsewhere[value]}"
        return unknown("", value, self.names).lstrip()


@dataclass(frozen=True, slots=True)
class Text(_Checked):
    """Text of so many characters."""

    least: int = 0
    most: int = 500

    def complaint(self, value: str) -> str:
        """Too short or too long."""
        if len(value) < self.least:
            return "must be set"
        return f"has {len(value)} characters, limit {self.most}" if len(value) > self.most else ""


POSITIVE: Final = Limit(0, above=True)
NOT_NEGATIVE: Final = Limit(0)
ANY: Final = Limit()
SWITCH: Final = Limit(1, 1, zero_is_off=True)
