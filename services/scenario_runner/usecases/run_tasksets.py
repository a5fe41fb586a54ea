"""The tasksets that a run plays, judges by and is followed on: whether they are of the right side."""

from episodes import Purpose, Split
from scenario_runner.adapters.sql_plan import PlanUnit
from scenario_runner.domain.mixes import tasksets_of
from scenario_runner.domain.runs import Refused
from scenario_runner.domain.tasksets import RegisteredTaskset
from scenario_runner.usecases.gates import check_gate
from scenario_runner.usecases.registering import no_such_taskset
from upcycle.run_config import RunSpec
from upcycle.tracking import parse_tracked


def check_tasksets(unit: PlanUnit, spec: RunSpec) -> list[RegisteredTaskset]:
    """The tasksets of the run, its own one first; none of a run of recorded sessions alone. Raises NotFound,
    and Refused where other tasks than those of split train would train, or others than held-out ones judge.
    """
    tasksets = [_registered(unit, name) for name in tasksets_of(spec)]
    for one in tasksets if spec.purpose is Purpose.TRAIN else ():
        _refuse_untrainable(spec, one)
    for taskset in (one for one in tasksets[:1] if spec.trainable and one.split.never_trains):
        what = "held out" if taskset.split is Split.HELD_OUT else "for audits"
        raise Refused(
            f"taskset {taskset.name!r} is {what}: its episodes never train; leave spec.trainable out"
        )
    judges = _registered(unit, spec.gate.taskset) if spec.gate is not None else None
    if judges is not None and judges.split is not Split.HELD_OUT:
        raise Refused(
            f"gate taskset {judges.name!r} is of split {judges.split.value}; a gate judges on held-out tasks "
            "only: register some under another name with split held_out"
        )
    if judges is not None and spec.gate is not None:
        check_gate(unit, spec.gate, judges)
    _check_tracked(unit, spec)
    return tasksets


def _refuse_untrainable(spec: RunSpec, taskset: RegisteredTaskset) -> None:
    if taskset.split is Split.UNASSIGNED:
        raise Refused(
            f"taskset {taskset.name!r} is unassigned: it neither trains nor judges; register its tasks under "
            "another name with split train"
        )
    if taskset.split is Split.AUDIT:
        raise Refused(
            f"taskset {taskset.name!r} is for audits: it neither trains nor gates; train on a taskset of "
            "split train"
        )
    if taskset.split is not Split.TRAIN:
        raise Refused(
            f"taskset {taskset.name!r} is held out: it never trains; measure it: "
            f"upcycle eval {taskset.name} {spec.policy.model}, or name it in --gate"
        )


def _check_tracked(unit: PlanUnit, spec: RunSpec) -> None:
    for text in spec.track:
        followed = _registered(unit, parse_tracked(text).taskset)
        if followed.split is not Split.HELD_OUT:
            raise Refused(
                f"tracked taskset {followed.name!r} is of split {followed.split.value}; a run is followed on "
                "held-out tasks only: register some under another name with split held_out"
            )


def _registered(unit: PlanUnit, name: str) -> RegisteredTaskset:
    taskset = unit.taskset(name)
    if taskset is None:
        raise no_such_taskset(unit, name)
    return taskset
