"""The seconds and the cost of runs, as people and programs read them."""

import json

import pytest
from tests.libs.upcycle_cli.planner import evaluation, training

from upcycle.api.common.v1 import common_pb2 as common
from upcycle.api.taskset.v1 import taskset_pb2 as ts
from upcycle.cli import evaluate, train
from upcycle.cli.eval_flags import Report
from upcycle.cli.runs import run_table
from upcycle.results import Coverage
from upcycle.usage import Usage, total_usage
from upcycle.wire import usage_of

SECONDS = common.Usage(engine_s=12.34, environment_s=40.0)
WHOLE = Coverage(num_tasks=4, num_planned=4, num_graded=4, num_successes=0, missing={})
PRICED = common.Usage(engine_s=1.0, environment_s=2.0, trainer_s=3.0, cost=0.125)


def test_a_message_has_a_cost_where_there_are_prices() -> None:
    assert usage_of(PRICED) == Usage(1.0, 2.0, 3.0, 0.125)
    assert usage_of(SECONDS).cost is None
    assert usage_of(common.Usage(cost=0.0)).cost == 0.0


def test_usages_add_up_and_have_a_cost_where_each_has_one() -> None:
    asked = Usage(cost=0.5, prompt_tokens=7, completion_tokens=2)
    assert total_usage([usage_of(PRICED), asked, asked]) == Usage(1.0, 2.0, 3.0, 1.125, 14, 4)
    assert total_usage([asked, usage_of(SECONDS)]).cost is None
    assert total_usage([]) == Usage()


def test_text_leaves_out_what_a_run_has_not() -> None:
    assert str(usage_of(SECONDS)) == "engines 12.3 s, environments 40.0 s"
    assert str(usage_of(PRICED)) == "engines 1.0 s, environments 2.0 s, trainer 3.0 s, cost 0.125"


def test_the_last_lines_of_eval_and_train_have_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    measured, trained = evaluation("run-e"), training("run-t")
    measured.usage.CopyFrom(SECONDS)
    trained.usage.CopyFrom(PRICED)
    evaluate._say(measured, WHOLE, Report())
    train._print_done(trained, as_json=False)
    printed = capsys.readouterr().out.splitlines()
    assert str(usage_of(SECONDS)) in printed
    assert str(usage_of(PRICED)) in printed
    evaluate._say(measured, WHOLE, Report(as_json=True))
    train._print_done(trained, as_json=True)
    without, with_cost = (json.loads(line)["usage"] for line in capsys.readouterr().out.splitlines())
    assert without == {"engine_s": 12.34, "environment_s": 40.0, "trainer_s": 0.0}
    assert with_cost["cost"] == 0.125


def test_a_run_of_which_nothing_was_graded_has_no_reward_of_0(capsys: pytest.CaptureFixture[str]) -> None:
    broken, wrong = evaluation("run-e"), evaluation("run-w")
    broken.counts.CopyFrom(ts.RunCounts(requested=4, settled=4, by_state={"failed": 4}))
    wrong.counts.CopyFrom(ts.RunCounts(requested=4, settled=4, by_state={"evaluated": 4}))
    evaluate._say(broken, Coverage(4, 4, 0, 0, {"timeout": 4}), Report())
    printed = capsys.readouterr().out.splitlines()
    assert "run-e: success –, reward –, graded 0 of 4 tasks; 4 missing: timeout" in printed
    evaluate._say(wrong, WHOLE, Report())
    assert "run-w: success 0.0%, reward 0.000, graded 4 of 4 tasks" in capsys.readouterr().out.splitlines()
    columns = {one.header: list(one.cells) for one in run_table([broken, wrong]).columns}  # type: ignore[attr-defined]
    assert (columns["reward"], columns["success"]) == (["–", "0.000"], ["–", "0.0%"])
