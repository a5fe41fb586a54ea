"""Upcycle: write an environment once, and the runs that evaluate an agent also train it.

Importing this package loads nothing: every name below is resolved on first use, so that a scenario process,
a command line and a training client each pay only for what they touch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from upcycle.agents import create_agent
    from upcycle.environment import Environment
    from upcycle.errors import InfrastructureError, UpcycleError
    from upcycle.evaluation import evaluation_of as eval
    from upcycle.graders import Rubric
    from upcycle.images import Image
    from upcycle.rewards import EvaluationResult, SubScore
    from upcycle.runtimes import Runtime
    from upcycle.scenario import Scenario
    from upcycle.tasks import Task, Taskset
    from upcycle.train import TrainingClient
    from upcycle.transcripts import Answer

_HOME = {
    "Answer": "upcycle.transcripts",
    "Environment": "upcycle.environment",
    "EvaluationResult": "upcycle.rewards",
    "Image": "upcycle.images",
    "InfrastructureError": "upcycle.errors",
    "Rubric": "upcycle.graders",
    "Runtime": "upcycle.runtimes",
    "Scenario": "upcycle.scenario",
    "SubScore": "upcycle.rewards",
    "Task": "upcycle.tasks",
    "Taskset": "upcycle.tasks",
    "TrainingClient": "upcycle.train",
    "UpcycleError": "upcycle.errors",
    "create_agent": "upcycle.agents",
}
_MODULES = ("agents", "eval", "graders", "tasks", "train")

__all__ = [
    "Answer",
    "Environment",
    "EvaluationResult",
    "Image",
    "InfrastructureError",
    "Rubric",
    "Runtime",
    "Scenario",
    "SubScore",
    "Task",
    "Taskset",
    "TrainingClient",
    "UpcycleError",
    "create_agent",
    "eval",
]


def __getattr__(name: str) -> Any:
    """Resolve a public name on first use; an unknown one is an AttributeError that lists the valid ones."""
    if name in _MODULES:
        return import_module(f"upcycle.{name}")
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'upcycle' has no attribute {name!r}; it offers {', '.join(__dir__())}")


def __dir__() -> list[str]:
    return sorted((*_HOME, *_MODULES))
