"""The reward of a repair: the share of the hidden calls that a defect broke and that are right now.

Calls that were right and are not any more take from it: five times their share. Each defect counts the same.
"""

from collections.abc import Mapping
from typing import Final

from upcycle import EvaluationResult, SubScore

from .drawing import Broken
from .running import answers

COST_OF_BREAKING: Final = 5.0


def grade(task: Broken, files: Mapping[str, str]) -> EvaluationResult:
    """The reward of the files that an agent left."""
    library = task.library
    if all(
        files.get(path) == text for path, text in task.files.items() if path.startswith(f"{library.name}/")
    ):
        return EvaluationResult(0.0, False, info={"reason": "no module was changed"})
    calls = [call for of_one in (*task.failing.values(), task.kept) for call in of_one]
    modules = [f"{library.name}.{file.removesuffix('.py')}" for file in library.files]
    own = {path: text for path, text in files.items() if path.startswith(f"{library.name}/")}
    found = answers(own, modules, calls)
    if found is None:
        return EvaluationResult(0.0, False, info={"reason": "the hidden tests did not run to their end"})
    right = {call for call, value in zip(calls, found, strict=True) if value == task.expected[call]}
    kept = sum(call in right for call in task.kept) / len(task.kept)
    factor = max(0.0, 1.0 - COST_OF_BREAKING * (1.0 - kept))
    fixed = {
        name: sum(call in right for call in of_one) / len(of_one) for name, of_one in task.failing.items()
    }
    score = factor * sum(fixed.values()) / len(fixed)
    parts = tuple(SubScore(name, value * factor, 1 / len(fixed)) for name, value in fixed.items())
    info = {"right": len(right), "of": len(calls), "kept": round(kept, 4)}
    return EvaluationResult(min(1.0, score), len(right) == len(calls), parts, info)
