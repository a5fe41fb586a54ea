"""`upcycle.eval(task)`, and `from upcycle.eval import Job`: the module is also the function.

async with upcycle.eval(task) as ctx:
    run = await create_agent("incident").run(ctx)
print(run.reward)
"""

import sys
from types import ModuleType

from upcycle.evaluation import EvalContext, EvaluationFailed, Job, evaluate, evaluation_of
from upcycle.results import Run

__all__ = ["EvalContext", "EvaluationFailed", "Job", "Run", "evaluate"]


class _EvalModule(ModuleType):
    __call__ = staticmethod(evaluation_of)


sys.modules[__name__].__class__ = _EvalModule
