"""Bugs that this platform had, or could have, each as a change of one file; `study` says which are found."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Bug:
    """was: text of the file, once; put_back: what stands there with the bug."""

    name: str
    path: str
    was: str
    put_back: str


_PLANNING: Final = "services/scenario_runner/usecases/planning.py"
BUGS: Final = (
    Bug(
        "slots leak: a group whose last member timed out stays open (F1)",
        "services/scenario_runner/adapters/sql_plan.py",
        "        if missing:\n            self.flush()",
        "        if False:\n            self.flush()",
    ),
    Bug(
        "a session that failed is told to nobody (F5)",
        _PLANNING,
        "        case SessionFailed():\n",
        "        case SessionFailed() if run.spec.training is None:\n",
    ),
    Bug(
        "a void step is announced: what stands about its groups is not looked at (F7)",
        "services/grpo_trainer/adapters/bus_facts.py",
        "        if found is not None and not _agree(found, decision.event):\n",
        "        if False:\n",
    ),
    Bug(
        "a command overtakes run.submitted (found by this simulator)",
        "services/scenario_runner/app.py",
        "BEFORE_COMMANDS: Final = (RunSubmitted,)",
        "BEFORE_COMMANDS: Final = ()",
    ),
    Bug(
        "a body is stored over the one of another sampler",
        "services/rollout_sampler/adapters/trajectories.py",
        "await self._store.put_if_absent(key, pack(body))",
        "await self._store.put(key, pack(body))",
    ),
    Bug(
        "a batch is acknowledged before it is applied",
        "libs/event_bus/batches.py",
        "                async with in_work(raws, self._spec):\n",
        "                for raw in raws:\n                    await self._ack(raw)\n"
        "                async with in_work(raws, self._spec):\n",
    ),
    Bug(
        "the trainer's cursor passes groups that wait",
        "services/grpo_trainer/runs/session.py",
        "return bound if first is None else min(bound, first - 1)",
        "return bound",
    ),
    Bug(
        "a group.settled that the stream lost is published by nobody",
        "services/grpo_trainer/runs/group_buffer.py",
        "            await self._answer_again(fact)\n",
        "",
    ),
    Bug(
        "grade and failure of one episode are two decisions",
        "services/reward_grader/handlers.py",
        "events.episode_outcome(episode.episode_id))",
        'events.episode_outcome(episode.episode_id) + "-graded")',
    ),
)
