"""Bugs that this platform had, or could have, each as a change of one file; `study` says which are found."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Bug:
    """was: text of the file, once; put_back: what stands there with the bug. also: a second change, of the
    same kind, where another part of the code would repair what the bug does."""

    name: str
    path: str
    was: str
    put_back: str
    also: tuple[str, str, str] | None = None
    is_rare: bool = False
    """Found once in thousands of histories, which takes longer than a test may."""


_PLANNING: Final = "services/scenario_runner/usecases/planning.py"
_PLAN: Final = "services/scenario_runner/adapters/sql_plan.py"
BUGS: Final = (
    Bug(
        "slots leak: a group whose last member failed stays open (F1; without the repair of each sweep)",
        _PLANNING,
        "failure)\n            _close_if_empty(unit, run.run_id, group.group_id)\n",
        "failure)\n",
        also=(_PLANNING, "    _close_left_open(unit, run_id)\n", ""),
    ),
    Bug(
        "the planner reads before it takes its turn (F4)",
        _PLAN,
        "            take_turn(connection, turn)\n",
        "",
    ),
    Bug(
        "no trainer takes the lease of one that is gone (F10)",
        "services/grpo_trainer/holding.py",
        "        if lease is not None and lease.holder == self.name:\n            return True",
        "        if lease is not None:\n            return lease.holder == self.name",
    ),
    Bug(
        "what the stream lost before the trainer read it is not announced again (F12)",
        "services/scenario_runner/usecases/reconciling.py",
        "        if found.is_nothing:\n",
        "        if found is not None:\n",
    ),
    Bug(
        "a session that failed is told to no service (F5)",
        _PLANNING,
        "        case SessionFailed():\n",
        "        case SessionFailed() if run.spec.training is None:\n",
    ),
    Bug(
        "a void step is announced: the stored decisions about its groups are not looked at (F7)",
        "services/grpo_trainer/adapters/bus_facts.py",
        "    if not _agree(stored, decision.event):\n",
        "    if False:\n",
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
        "a group.settled that the stream lost is not published again",
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
    Bug(
        "the gate promotes a candidate whose verdict is not to promote it",
        "services/checkpoint_registry/usecases/gating.py",
        "            elif judgement.is_passed:\n",
        "            elif judgement.decision.attempts:\n",
    ),
    Bug(
        "a trainer does not ask which of its runs are over",
        "services/grpo_trainer/runs/lost_ends.py",
        "        for run in await self._ends.look(asked):\n",
        "        for run in ():\n",
    ),
    Bug(
        "a supervisor of engines does not ask which pinned runs are over (found by this simulator)",
        "services/policy_engine/loops.py",
        "        for run in await self._ends.look(self._pins.runs):\n",
        "        for run in ():\n",
    ),
    Bug(
        "a run ends with its last step though steps before it are not read (found by this simulator)",
        "services/scenario_runner/usecases/ending.py",
        "    if not has_read_all and not is_certain:\n",
        "    if False:\n",
    ),
    Bug(
        "two planners read one durable, each a part of the facts (found by this simulator, seed 10946)",
        "services/scenario_runner/handlers.py",
        ", is_ours=reading.is_ours)",
        ")",
        also=(
            "services/scenario_runner/handlers.py",
            "apply_facts(unit, facts), check=reading.check)",
            "apply_facts(unit, facts))",
        ),
        is_rare=True,
    ),
    Bug(
        "a run that was stopped during a step that came too late has no last checkpoint (found by this "
        "simulator, seed 16025)",
        "services/grpo_trainer/runs/session.py",
        "            await self._early_end.before_void_step(self.spec.model, self.spec.run_id)\n",
        "",
        is_rare=True,
    ),
)
