"""New tasks in the corridor, as the planner has them made: a generator shortens what was failed and lengthens
what was solved. Which groups order one, which turns they take and when they retire is the shipped code."""

from __future__ import annotations

import json

from benchmarks.study.corridor import Group, Kinds
from grpo_trainer.domain.spec import TrainingSpec
from scenario_runner.domain.difficulty import LOOK_BACK_STEPS, Attempts, expected, is_fit
from scenario_runner.domain.new_tasks import (
    FLAT,
    NewTaskRow,
    NewTaskState,
    most_open,
    order_seed,
    orders_one,
    turns_of_new,
)
from scenario_runner.domain.task_sampler import draw_tasks
from upcycle.run_config.names import SPREAD


def turns_of(row: NewTaskRow) -> int:
    """How long a new task is."""
    return int(json.loads(row.args_json)["turns"])


class Curriculum:
    """The new tasks of one run."""

    def __init__(self, kinds: Kinds, spec: TrainingSpec, seed: int) -> None:
        self._kinds = kinds
        self._spec = spec
        self._seed = seed
        self.rows: list[NewTaskRow] = []
        self.num_filtered = 0
        self._played: list[tuple[int, int, Attempts]] = []
        """Position, kind and attempts of each group."""

    def drawn(self, at: int) -> NewTaskRow | None:
        """The new task of the group at this position; None: it plays one of the taskset."""
        playing = [row for row in self.rows if row.state is NewTaskState.PLAYING]
        if not playing or not turns_of_new(self._spec.new_tasks_share, [at]):
            return None
        (index,) = draw_tasks(SPREAD, self._seed, [row.past for row in playing], [at])
        return playing[index]

    def ended(self, group: Group, played: NewTaskRow | None, at: int, *, has_signal: bool) -> None:
        """Count a group of this new task, or of the taskset, and order another task of it."""
        outcome = "trained" if has_signal else FLAT
        if played is not None:
            closed = played.planned(at).closed(outcome, self._spec.new_tasks_retire_after)
            self.rows[played.number] = closed
        turns = group.actions.shape[1]
        played_now = Attempts(float(turns), len(group.successes), sum(group.successes))
        self._played.append((at, group.kind, played_now))
        num_open = sum(row.state is NewTaskState.PLAYING for row in self.rows)
        if orders_one(self._spec, outcome, group.successes) and num_open < most_open(self._spec):
            self._make(at, group.kind, turns, solved=all(group.successes))

    def _make(self, at: int, kind: int, turns: int, *, solved: bool) -> None:
        number = len(self.rows) + self.num_filtered
        seed = order_seed(self._seed, number)
        step = 1 + seed % 3
        made = min(self._kinds.turns[kind], turns + step) if solved else max(1, turns - step)
        if not self._is_played(at, kind, made):
            self.num_filtered += 1
            return
        args = json.dumps({"turns": made, "seed": seed})
        at_row = len(self.rows)
        row = NewTaskRow("run-study", at_row, "corridor", kind, "walk", "", seed, "", "", "{}", solved=solved)
        self.rows.append(row.made(args, f"{number:064d}"))

    def _is_played(self, at: int, kind: int, turns: int) -> bool:
        """Whether the run keeps a new task of this kind that is so long."""
        if not self._spec.new_tasks_difficulty:
            return True
        since = at + 1 - LOOK_BACK_STEPS * self._spec.prompts_per_step
        played = (one for position, of_kind, one in self._played if position >= since and of_kind == kind)
        found = expected(turns, played)
        return found is None or is_fit(self._spec, found.success)
