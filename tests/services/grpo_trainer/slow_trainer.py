"""`upcycle-grpo-trainer` whose steps take SLOW_STEP_S longer."""

from __future__ import annotations

import os
import time

from grpo_trainer.app import main
from grpo_trainer.learner.core import LearnerCore, StepShare

_quick = LearnerCore.step


def _slow(self: LearnerCore, share: StepShare) -> dict[str, float] | None:
    time.sleep(float(os.environ["SLOW_STEP_S"]))
    return _quick(self, share)


if __name__ == "__main__":
    LearnerCore.step = _slow  # type: ignore[method-assign]
    main()
