"""What a seed chooses: the run, how bad the network is, how many replicas there are, what befalls them."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.simulation import services
from tests.simulation.network import Weather

from episodes import Purpose
from upcycle.run_config import Gate, PolicyChoice, RunSpec, Training

FAULTS_S: Final = 45.0
"""How long faults may begin; after that everything works, and the run must end."""
_KINDS: Final = (*["crash"] * 3, *["freeze"] * 2, *["partition"] * 2, "forget")
_ENDING: Final = 0.15
"""How often a training run is ended while its trainer is away for longer than the planner waits for it."""
_TAKEN_OVER: Final = 0.1
"""How often one of two trainers never comes back."""
FOR_GOOD: Final = float("inf")
"""How long a replica is away that never comes back."""
_SERVERS: Final = ("nats", "s3", "planner", "registry", "sql/scenario_runner", "sql/trajectory_store")


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a replica at a moment.

    what: `crash` (after the replica ran `steps` times more; it is started again after lasts_s), `freeze` (as
    SIGSTOP does, for lasts_s), `partition` (from one server, for lasts_s), or `forget` (the stream removes
    what the trainers, which are down for lasts_s, have not read, and everybody else has).
    """

    at_s: float
    what: str
    service: str
    replica: int
    lasts_s: float
    steps: int
    server: str


@dataclass(frozen=True, slots=True)
class Plan:
    """One history, before it is played. cancel_at_s, stop_at_s: when a person ends the run early.
    interleaved: transactions do, as on Postgres."""

    seed: int
    spec: RunSpec
    num_tasks: int
    weather: Weather
    replicas: dict[str, int]
    interleaved: bool
    faults: tuple[Fault, ...]
    cancel_at_s: float | None
    stop_at_s: float | None
    opening_fails: float
    playing_fails: float
    grading_fails: float
    learning_fails: float


def plan_of(seed: int) -> Plan:
    """The plan of a seed: small runs, so that a hundred thousand are affordable."""
    rng = random.Random(seed)
    spec = _spec(rng)
    replicas = dict.fromkeys(services.STARTS, 1)
    if spec.gate is not None:
        replicas[services.REGISTRY] = 1
    for name in (services.SAMPLER, services.GRADER, services.TRAINER):
        replicas[name] = rng.choice((1, 1, 2))
    interleaved = rng.random() < 0.4
    replicas[services.PLANNER] = rng.choice((1, 2)) if interleaved else 1
    early, at_s = rng.random(), rng.uniform(0, 20)
    swarm = random.Random(f"swarm {seed}")
    found = [*_faults(rng, replicas)]
    if not any(one.lasts_s == FOR_GOOD for one in found):
        found += _taken_over(swarm, spec, replicas)
    if spec.purpose is Purpose.TRAIN and swarm.random() < _ENDING:
        early, at_s = swarm.choice((0.0, 0.2)), swarm.choice((swarm.uniform(0, 1.5), swarm.uniform(0, 8)))
        found += _trainers_away(swarm, at_s, replicas[services.TRAINER])
    return Plan(
        seed=seed,
        spec=spec,
        num_tasks=rng.randint(2, 4),
        weather=Weather(
            slow=rng.choice((0.0, 0.02, 0.2)),
            lost=rng.choice((0.0, 0.0, 0.01, 0.05)),
            repeated=rng.choice((0.0, 0.1)),
            forgotten=random.Random(f"forgotten {seed}").choice((0.0, 0.0, 0.5)),
        ),
        replicas=replicas,
        interleaved=interleaved,
        faults=tuple(sorted(found, key=lambda one: one.at_s)),
        cancel_at_s=at_s if early < 0.15 else None,
        stop_at_s=at_s if 0.15 <= early < 0.3 and spec.purpose is Purpose.TRAIN else None,
        opening_fails=rng.choice((0.0, 0.1)),
        playing_fails=rng.choice((0.0, 0.2)) or swarm.choice((0.0, 0.0, 0.0, 0.6)),
        grading_fails=rng.choice((0.0, 0.1)) or swarm.choice((0.0, 0.0, 0.0, 0.4)),
        learning_fails=swarm.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.3)),
    )


def _trainers_away(rng: random.Random, at_s: float, num_trainers: int) -> Sequence[Fault]:
    """Around the end of the run, no trainer reaches one of its servers, or none runs."""
    what, server = rng.choice(("freeze", "partition", "partition")), rng.choice(("s3", "nats", "s3"))
    begins_s, lasts_s = max(0.0, at_s + rng.uniform(-1.0, 0.5)), rng.choice((12.0, 30.0, 40.0))
    return [
        Fault(begins_s, what, services.TRAINER, replica, lasts_s, 0, server)
        for replica in range(num_trainers)
    ]


def _taken_over(rng: random.Random, spec: RunSpec, replicas: dict[str, int]) -> Sequence[Fault]:
    """While a run trains, one of two trainers never comes back. This changes `replicas`."""
    if spec.purpose is not Purpose.TRAIN or rng.random() >= _TAKEN_OVER:
        return ()
    replicas[services.TRAINER] = 2
    gone, steps = rng.randrange(2), rng.randint(0, 40)
    return (Fault(rng.uniform(0, 2), "crash", services.TRAINER, gone, FOR_GOOD, steps, ""),)


def _spec(rng: random.Random) -> RunSpec:
    policy, deadline_s = PolicyChoice(services.MODEL), services.EPISODE_DEADLINE_S
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
        )
        found.append(fault)
    gone = [name for name, count in sorted(replicas.items()) if count > 1]
    if gone and rng.random() < 0.3:
        service, at_s = rng.choice(gone), rng.uniform(0, 10)
        found.append(Fault(at_s, "crash", service, rng.randrange(2), FOR_GOOD, rng.randint(0, 40), ""))
    return found
