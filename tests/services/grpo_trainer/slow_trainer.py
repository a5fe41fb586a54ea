"""`upcycle-grpo-trainer` whose steps take SLOW_STEP_S longer."""

from __future__ import annotations

import os
import time

from grpo_trainer.app import main
from grpo_trainer.learner.commands import Step
from grpo_trainer.learner.core import SessionCores

_quick = Step.execute


def _slow(self: Step, cores: SessionCores) -> dict[str, float] | None:
    time.sleep(float(os.environ["SLOW_STEP_S"]))
    return _quick(self, cores)


if __name__ == "__main__":
    Step.execute = _slow  # type: ignore[method-assign]
    main()
