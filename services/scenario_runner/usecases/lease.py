"""One lease on a live environment, and what came of it."""

import asyncio
import json
import traceback
from dataclasses import dataclass, field
from datetime import datetime

from scenario_runner.domain.environments import (
    EnvironmentBroken,
    EnvironmentLost,
    EpisodeError,
    EpisodeToPlay,
    Grade,
    ToolOutcome,
)
from scenario_runner.ports import LiveEnvironment
from scenario_runner.usecases.judge_questions import JudgeQuestions
from upcycle.states import StateEntry


@dataclass(slots=True)
class Lease:
    """environment: None once it ended. A lease outlives it by minutes, and there are thousands of them.
    is_closed: whether it was the lease that ended it, and nothing that happened in it."""

    lease_id: str
    episode: EpisodeToPlay
    environment: LiveEnvironment | None
    expires_at: datetime
    calls: dict[str, "asyncio.Task[ToolOutcome]"] = field(default_factory=dict)
    last_state: "asyncio.Task[StateEntry] | None" = None
    grading: "asyncio.Future[Grade] | None" = None
    questions: JudgeQuestions | None = None
    is_closed: bool = False

    @property
    def ended(self) -> bool:
        """Whether its environment ended."""
        return self.environment is None

    @property
    def episode_id(self) -> str:
        """Whose environment it is."""
        return self.episode.episode_id

    def keep_result(self, grading: "asyncio.Future[Grade]") -> None:
        """What came of the grade takes the place of its task, which holds on to the context of the call that
        began it, and in a failure to all that was graded."""
        kept: asyncio.Future[Grade] = grading.get_loop().create_future()
        if grading.cancelled():
            kept.cancel()
        elif (error := grading.exception()) is not None:
            _let_go(error)
            kept.set_exception(error)
            kept.exception()  # read here: while a judge is asked, no call awaits it
        else:
            kept.set_result(grading.result())
            _let_go(grading.result().failure)
        self.grading = kept


async def called(
    environment: LiveEnvironment, name: str, arguments_json: str, limit_s: float | None
) -> ToolOutcome:
    try:
        arguments = json.loads(arguments_json or "{}")
    except (ValueError, RecursionError) as error:
        return ToolOutcome(f"{name}: arguments are not JSON: {error}", True, False, 0.0)
    if not isinstance(arguments, dict):
        return ToolOutcome(f"{name}: arguments are not a JSON object", True, False, 0.0)
    return await environment.call_tool(name, arguments, limit_s=limit_s)


def refuse_blame(lease: Lease, error: EpisodeError) -> None:
    """A failure that is not the policy's, whatever a fresh instance does: no judge of the scenario's is asked
    by that name, or the lease ended meanwhile and killed the environment."""
    if lease.questions is not None and lease.questions.refusal:
        raise EnvironmentBroken(lease.questions.refusal) from error
    if lease.is_closed:
        raise EnvironmentLost("the lease of the environment ended while it was used") from error


def _let_go(error: BaseException | None) -> None:
    """Forget the local variables of the functions that an error, and those behind it, came through.

    Errors may stand behind each other in a circle: one that is raised again while the other is handled.
    """
    seen: set[int] = set()
    behind = [error]
    while behind:
        error = behind.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            behind += [error.__cause__, error.__context__]
