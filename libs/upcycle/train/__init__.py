"""Training by hand: roll out, step, roll out again; or forward, backward and update one at a time.

trainer = TrainingClient("incident")
result = await trainer.step(session.runs, learning_rate=1e-5, group_size=8)

Nothing here needs torch but `forward_backward_custom`, and that only when it is called.
"""

from upcycle.train.client import TrainingClient
from upcycle.train.inputs import Conversation, Lora, Sample, TokenRow, Trajectory, whole_groups
from upcycle.train.results import DatumTensors, Forward, ForwardBackwardResult, OptimStepResult, StepResult

__all__ = [
    "Conversation",
    "DatumTensors",
    "Forward",
    "ForwardBackwardResult",
    "Lora",
    "OptimStepResult",
    "Sample",
    "StepResult",
    "TokenRow",
    "TrainingClient",
    "Trajectory",
    "whole_groups",
]
