"""Interactive training: the client drives it, one call at a time.

Sample with an evaluation, take a step, sample again; or call forward, backward and the update separately.

trainer = TrainingClient("incident")
result = await trainer.step(session.runs, learning_rate=1e-5, group_size=8)

One call trains a whole run on what evaluations sampled: `await trainer.train_on(session.run_ids, steps=2)`.

Only `forward_backward_custom` needs torch, and imports it when it is called.
"""

from upcycle.train.client import TrainingClient
from upcycle.train.inputs import Conversation, Lora, Sample, TokenRow, Trajectory, whole_groups
from upcycle.train.results import DatumTensors, Forward, ForwardBackwardResult, OptimStepResult, StepResult
from upcycle.train.running import Source, TrainedRun, TrainingFailed
from upcycle.train.sampling import Sampled, SamplingRefused

__all__ = [
    "Conversation",
    "DatumTensors",
    "Forward",
    "ForwardBackwardResult",
    "Lora",
    "OptimStepResult",
    "Sample",
    "Sampled",
    "SamplingRefused",
    "Source",
    "StepResult",
    "TokenRow",
    "TrainedRun",
    "TrainingClient",
    "TrainingFailed",
    "Trajectory",
    "whole_groups",
]
