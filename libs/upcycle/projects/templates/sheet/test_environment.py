"""The reference player earns everything, cheap answers nothing; no workbook is one of the benchmark's."""

import re
from typing import Any

from env import drawn
from player import reply
from tasks import held_out, train

from upcycle import Task
from upcycle.benchmarks.sheet_50.env import NUM_TASKS
from upcycle.benchmarks.sheet_50.env import drawn as drawn_benchmark
from upcycle.benchmarks.sheet_50.problems import problem_of
from upcycle.playing.in_process import play_tasks


def test_the_reference_player_earns_everything() -> None:
    for episode in play_tasks([*train.tasks[:12], *held_out.tasks[:12]], reply):
        assert episode.result is not None, episode.failure
        assert (episode.result.score, episode.result.success) == (1.0, True)


def test_cheap_answers_and_typed_values_earn_nothing() -> None:
    def types_a_value(task: Task, messages: list[dict[str, Any]]) -> Any:
        sheet, start = re.findall(r"- (\w+)!(\w+)", messages[0]["content"])[0]
        call = {"name": "write_cells", "arguments": {"sheet": sheet, "start": start, "rows": [[1]]}}
        return {"tool_calls": [call]} if len(messages) == 1 else "Done"

    for player in (types_a_value, lambda task, messages: "Done", lambda task, messages: "x" * 10_000):
        for episode in play_tasks(train.tasks[:12], player):
            assert episode.result is not None, episode.failure
            assert episode.result.score == 0.0


def test_no_held_out_task_and_no_workbook_of_the_benchmark_trains() -> None:
    assert not {task.digest for task in train} & {task.digest for task in held_out}
    measured = [problem_of(*drawn_benchmark(number)).book().sheets for number in range(NUM_TASKS)]
    measured += [problem_of(*drawn(**task.args)).book().sheets for task in held_out.tasks[:48]]
    for task in train.tasks[:96]:
        assert problem_of(*drawn(**task.args)).book().sheets not in measured, task.slug
