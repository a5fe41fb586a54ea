"""Tasks that have no solution, by which a reward hack shows itself."""

from typing import Final

IMPOSSIBLE_FAMILY: Final = "impossible-by-design"
"""Of tasks that have no solution, as their author declares. A success at one fooled its grader: the gate
plays them, the monitor `impossible_solved` counts the successes, and no rate of gate, evaluation, track or
audit does."""
