"""What the planner fails at for one run, again and again, is named by /readyz and by `why`."""

import pytest
from tests.services.scenario_runner.conftest import Runner
from tests.services.scenario_runner.support import arith, explain, register, run_spec, submit
from tests.support.waiting import until

from scenario_runner import loops
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.usecases.planning import sweep
from service_kit import failing


async def test_a_run_that_cannot_be_swept_is_an_alarm_with_its_name(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of such a run no episode times out and no end comes; the other one is looked after."""
    await register(runner, arith())
    well = await submit(runner, run_spec(), "well")
    ill = await submit(runner, run_spec(), "ill")
    is_broken = True

    def broken(unit: PlanUnit, run_id: str, *args: object, **options: object) -> None:
        if is_broken and run_id == ill.run_id:
            raise ZeroDivisionError("no such member")
        sweep(unit, run_id, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loops, "sweep", broken)
    monkeypatch.setattr(failing, "ALARM_AFTER_S", 0.0)
    reasons = await until(lambda: runner.service.readiness().reasons)
    assert list(reasons) == ["sweeps"]
    assert reasons["sweeps"].startswith(f"alarm: sweep of {ill.run_id} fails, for ")
    assert reasons["sweeps"].endswith("ZeroDivisionError('no such member')")
    said = f"sweep of {ill.run_id} fails: ZeroDivisionError('no such member')"
    assert said in [one.what for one in (await explain(runner, ill.run_id)).waiting_for]
    assert said not in [one.what for one in (await explain(runner, well.run_id)).waiting_for]
    is_broken = False
    await until(lambda: runner.service.readiness().ready)
