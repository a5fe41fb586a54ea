"""What a seed chooses: the runs, how bad the network is, how many replicas there are, what befalls them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.simulation import services
from tests.simulation.moments import FACTS, OBJECTS, Moment
from tests.simulation.network import Weather

from episodes import Purpose
from upcycle.run_config import Gate, PolicyChoice, RunSpec, Training

FAULTS_S: Final = 45.0
"""How long faults may begin; after that everything works, and each run must end."""
_KINDS: Final = (*["crash"] * 3, *["freeze"] * 2, *["partition"] * 2, "forget")
_ENDING: Final = 0.15
"""How often a training run is ended while its trainer is away for longer than the planner waits for it."""
_TAKEN_OVER: Final = 0.1
"""How often one of two trainers never comes back."""
_AT_A_MOMENT: Final = 0.4
"""How often a fault begins with something that happens, and not at a time."""
_SECOND_RUN: Final = 0.15
_SECOND_MODEL: Final = 0.15
_MIXED: Final = 0.3
"""How often a training run plays two tasksets."""
_ENGINES: Final = 0.3
"""How often engines have supervisors where a registry runs."""
FOR_GOOD: Final = float("inf")
"""How long a replica is away that never comes back."""
_SERVERS: Final = ("nats", "s3", "planner", "registry", "sql/scenario_runner", "sql/trajectory_store")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a replica at a moment.

    what: `crash` (after the replica ran `steps` times more; it is started again after lasts_s), `freeze` (as
    SIGSTOP does, for lasts_s), `partition` (from one server, for lasts_s), or `forget` (the stream removes
    what the trainers, which are down for lasts_s, have not read, and everybody else has). on: it begins then,
    and not at at_s.
    """

    at_s: float
    what: str
    service: str
    replica: int
    lasts_s: float
    steps: int
    server: str
    on: Moment | None = None


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that a person submits at at_s. ends_at_s, ends_on: when, from then on, that person stops it, or
    cancels it."""

    number: int
    spec: RunSpec
    at_s: float
    is_cancelled: bool = False
    ends_at_s: float | None = None
    ends_on: Moment | None = None

    @property
    def model(self) -> str:
        """What it is about."""
        return self.spec.policy.model


@dataclass(frozen=True, slots=True)
class Plan:
    """One history, before it is played. interleaved: transactions do, as on Postgres."""

    seed: int
    runs: tuple[PlannedRun, ...]
    num_tasks: int
    weather: Weather
    replicas: dict[str, int]
    interleaved: bool
    faults: tuple[Fault, ...]
    opening_fails: float
    playing_fails: float
    grading_fails: float
    learning_fails: float
    engines_fail: float

    @property
    def models(self) -> tuple[str, ...]:
        """What the runs are about."""
        return tuple(sorted({one.model for one in self.runs}))


def plan_of(seed: int) -> Plan:
    """The plan of a seed: small runs, so that a hundred thousand are affordable."""
    rng, swarm = random.Random(seed), random.Random(f"swarm {seed}")
    runs, away = _runs(rng, swarm)
    mixes = random.Random(f"mix {seed}")
    runs = [_mixed(mixes, one) for one in runs]
    replicas = dict.fromkeys(services.STARTS, 1)
    if any(one.spec.gate is not None for one in runs):
        replicas[services.REGISTRY] = 1
        if swarm.random() < _ENGINES:
            replicas[services.ENGINE] = services.ENGINES_PER_MODEL * len({one.model for one in runs})
    for name in (services.SAMPLER, services.GRADER, services.TRAINER):
        replicas[name] = rng.choice((1, 1, 2))
    interleaved = rng.random() < 0.4
    replicas[services.PLANNER] = rng.choice((1, 2)) if interleaved else 1
    found = [*_faults(rng, replicas)]
    if not any(one.lasts_s == FOR_GOOD for one in found):
        found += _taken_over(swarm, runs, replicas)
    found += [one for one in away if one.replica < replicas[services.TRAINER]]
    return Plan(
        seed=seed,
        runs=tuple(runs),
        num_tasks=rng.randint(2, 4),
        weather=Weather(
            slow=rng.choice((0.0, 0.02, 0.2)),
            lost=rng.choice((0.0, 0.0, 0.01, 0.05)),
            repeated=rng.choice((0.0, 0.1)),
            forgotten=swarm.choice((0.0, 0.0, 0.5)),
        ),
        replicas=replicas,
        interleaved=interleaved,
        faults=tuple(sorted(found, key=lambda one: one.at_s)),
        opening_fails=rng.choice((0.0, 0.1)),
        playing_fails=rng.choice((0.0, 0.2)) or swarm.choice((0.0, 0.0, 0.0, 0.6)),
        grading_fails=rng.choice((0.0, 0.1)) or swarm.choice((0.0, 0.0, 0.0, 0.4)),
        learning_fails=swarm.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.3)),
        engines_fail=swarm.choice((0.0, 0.02, 0.1)),
    )


def _runs(rng: random.Random, swarm: random.Random) -> tuple[list[PlannedRun], Sequence[Fault]]:
    """One run, or two of one model, one of two models, or all three; and how their trainers are away."""
    model, other = services.MODELS
    first = _spec(rng, model)
    wanted = [(first, 0.0)]
    more = swarm.random()
    if more < _SECOND_RUN:
        wanted.append((_spec(swarm, model), swarm.uniform(0, 4)))
    if _SECOND_RUN - 0.03 < more < _SECOND_RUN + _SECOND_MODEL:
        wanted.append((_spec(swarm, other), swarm.uniform(0, 4)))
    found: list[PlannedRun] = []
    away: Sequence[Fault] = ()
    for number, (spec, at_s) in enumerate(wanted):
        run, its_trainers = _ended(rng if number == 0 else swarm, PlannedRun(number, spec, at_s))
        found.append(run)
        away = away or its_trainers
    return found, away


def _ended(rng: random.Random, run: PlannedRun) -> tuple[PlannedRun, Sequence[Fault]]:
    """Whether and when a person ends the run, and what its trainers do meanwhile."""
    is_training = run.spec.purpose is Purpose.TRAIN
    early, at_s = rng.random(), rng.uniform(0, 20)
    if is_training and rng.random() < _ENDING:
        is_cancelled, soon_s = rng.random() < 0.5, rng.choice((rng.uniform(0, 1.5), rng.uniform(0, 8)))
        on = _moment(rng, ("object training", "object policies")) if rng.random() < 0.5 else None
        ended = PlannedRun(run.number, run.spec, run.at_s, is_cancelled, soon_s, on)
        return ended, _trainers_away(rng, run.at_s + soon_s, on)
    if early < 0.15 or (early < 0.3 and is_training):
        return PlannedRun(run.number, run.spec, run.at_s, early < 0.15, at_s), ()
    return run, ()


def _mixed(rng: random.Random, run: PlannedRun) -> PlannedRun:
    """Some training runs play a second taskset, of another environment."""
    if run.spec.purpose is not Purpose.TRAIN or rng.random() >= _MIXED:
        return run
    mix = (f"{services.OTHER_TASKS}:share={rng.choice(('0.25', '1/3', '0.5', '0.8'))}",)
    return replace(run, spec=replace(run.spec, mix=mix))


def _moment(rng: random.Random, kinds: Sequence[str] = (*OBJECTS, *FACTS)) -> Moment:
    return Moment(rng.choice(kinds), rng.choice((1, 1, 2, 3, 5)))


def _trainers_away(rng: random.Random, at_s: float, on: Moment | None) -> Sequence[Fault]:
    """Around the end of the run, no trainer reaches one of its servers, or none runs."""
    what, server = rng.choice(("freeze", "partition", "partition")), rng.choice(("s3", "nats", "s3"))
    begins_s, lasts_s = max(0.0, at_s + rng.uniform(-1.0, 0.5)), rng.choice((12.0, 30.0, 40.0))
    return [Fault(begins_s, what, services.TRAINER, replica, lasts_s, 0, server, on) for replica in range(2)]


def _taken_over(rng: random.Random, runs: Sequence[PlannedRun], replicas: dict[str, int]) -> Sequence[Fault]:
    """While a run trains, one of two trainers never comes back. This changes `replicas`."""
    if all(one.spec.purpose is not Purpose.TRAIN for one in runs) or rng.random() >= _TAKEN_OVER:
        return ()
    replicas[services.TRAINER] = 2
    gone, steps = rng.randrange(2), rng.randint(0, 40)
    return (Fault(rng.uniform(0, 2), "crash", services.TRAINER, gone, FOR_GOOD, steps, ""),)


def _spec(rng: random.Random, model: str) -> RunSpec:
    policy, deadline_s = PolicyChoice(model), services.EPISODE_DEADLINE_S
    if rng.random() < 0.3:
        group_size = rng.choice((1, 1, 2))
        return RunSpec("ts", Purpose.EVAL, policy, group_size, episode_deadline_s=deadline_s)
    training = Training(
        steps=rng.choice((1, 1, 2, 3)),
        prompts_per_step=rng.choice((1, 1, 2)),
        max_staleness=rng.randint(0, 1),
    )
    group_size, gate = rng.choice((2, 2, 2, 3)), None
    if rng.random() < 0.25:
        gate = Gate(services.HELD_OUT, services.ATTEMPTS, confidence=0.5, regression_margin=1.0)
    return RunSpec(
        "ts", Purpose.TRAIN, policy, group_size, training=training, gate=gate, episode_deadline_s=deadline_s
    )


def _faults(rng: random.Random, replicas: dict[str, int]) -> Sequence[Fault]:
    found = []
    for _ in range(rng.choice((0, 1, 2, 4))):
        service = rng.choice(sorted(replicas))
        # Most of what matters happens in the first seconds.
        at_s = rng.choice((rng.uniform(0, 3), rng.uniform(0, FAULTS_S)))
        fault = Fault(
            at_s=at_s,
            what=rng.choice(_KINDS),
            service=service,
            replica=rng.randrange(replicas[service]),
            lasts_s=rng.choice((0.1, 2.0, 12.0, 40.0)),
            steps=rng.randint(0, 40),
            server=rng.choice(_SERVERS),
            on=_moment(rng) if rng.random() < _AT_A_MOMENT else None,
        )
        found.append(fault)
    gone = [name for name, count in sorted(replicas.items()) if count > 1 and name != services.ENGINE]
    if gone and rng.random() < 0.3:
        service, at_s = rng.choice(gone), rng.uniform(0, 10)
        found.append(Fault(at_s, "crash", service, rng.randrange(2), FOR_GOOD, rng.randint(0, 40), ""))
    return found
