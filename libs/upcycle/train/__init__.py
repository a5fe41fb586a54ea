"""Interactive training: roll out, step, roll out again; or forward, backward and update one at a time.

trainer = TrainingClient("incident")
result = await trainer.step(session.runs, learning_rate=1e-5, group_size=8)

A whole training run on what evaluations sampled is one call:
`await trainer.train_on(session.run_ids, steps=2)`.

Nothing here needs torch but `forward_backward_custom`, and that only when it is called.
"""

from upcycle.train.client import TrainingClient
from upcycle.train.inputs import Conversation, Lora, Sample, TokenRow, Trajectory, whole_groups
from upcycle.train.results import DatumTensors, Forward, ForwardBackwardResult, OptimStepResult, StepResult
from upcycle.train.running import Source, TrainedRun, TrainingFailed

__all__ = [
    "Conversation",
    "DatumTensors",
    "Forward",
    "ForwardBackwardResult",
    "Lora",
    "OptimStepResult",
    "Sample",
    "Source",
    "StepResult",
    "TokenRow",
    "TrainedRun",
    "TrainingClient",
    "TrainingFailed",
    "Trajectory",
    "whole_groups",
]
