"""What an evaluation returns: one record per played episode."""

from dataclasses import dataclass, field

from upcycle.transcripts import Transcript
from upcycle.usage import NONE, Usage


@dataclass(frozen=True, slots=True)
class Run:
    """One played and graded episode. reward: in [0, 1].

    trace_id: the id of its trajectory in the store (`traj-…`), which `TrainingClient.step` takes as an input;
    not an OpenTelemetry trace. otel_trace_id: the OpenTelemetry trace of the evaluation, 32 hex digits; empty
    where the platform records none. failure: why there is no reward (reward is then 0 and means nothing).
    run_id: of the evaluation that the episode belongs to. usage: seconds of engines and of its environment.
    """

    task_slug: str
    reward: float
    success: bool
    trace_id: str
    episode_id: str
    failure: str = ""
    trajectory: Transcript | None = field(default=None, repr=False)
    answer: str = field(default="", repr=False)
    run_id: str = ""
    otel_trace_id: str = ""
    usage: Usage = NONE

    @property
    def is_error(self) -> bool:
        """No reward exists for this episode."""
        return bool(self.failure)
