"""Success of every token loss on the toy task `retry` when rollouts are 0, 8 and 16 optimizer steps late.

The trainer's own learner, 32 x 8 episodes a step at a learning rate that is large on purpose: what differs
between the losses is what bounds a token that has moved away from its sampler. One process per core, one
thread each.
"""

import asyncio
import multiprocessing
import os
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from tests.services.grpo_trainer.toy_learning import Lesson, Report, learn

from benchmarks.figures import Figure, Limit
from benchmarks.options import Options

RATE: Final = 3e-4
"""Large: about 0.05 nats of KL per 8 updates early in a run."""
TARGET: Final = 0.90
SUSTAINED_KL: Final = 0.1


@dataclass(frozen=True, slots=True)
class Contender:
    """A loss with its parameters, as the table names it. steps: of its runs; lags: one run each."""

    title: str
    loss: str
    config: Mapping[str, float]
    steps: int = 60
    lags: tuple[int, ...] = (8, 16)
    learning_rate: float = RATE


# Without lag and with one update per batch every ratio is 1, and all losses have one gradient.
DEFAULT: Final = Contender("ppo .2/.28 (default)", "ppo", {}, steps=100, lags=(0, 8, 16))
DROP: Final = {"clip_high": 0.28}
DROP_POSITIVE: Final = {**DROP, "drop_positive_only": 1.0}
CONTENDERS: Final = (
    DEFAULT,
    Contender("ppo .2/.28, dual clip 3", "ppo", {"dual_clip": 3.0}),
    Contender("dppo .2", "dppo", {}),
    Contender("gspo 3e-3/4e-3", "gspo", {"clip_low": 3e-3, "clip_high": 4e-3}),
    Contender("dro .05", "dro", {}),
    Contender("ipo .3", "ipo", {}),
    Contender("importance_sampling", "importance_sampling", {}),
    Contender("cispo 5", "cispo", {}),
    Contender("decoupled, w > 5 dropped", "decoupled", DROP),
    Contender("decoupled, w > 5 dropped where A > 0", "decoupled", DROP_POSITIVE),
    Contender("decoupled, w > 5 dropped, rate 1e-4", "decoupled", DROP, 120, (8,), 1e-4),
    Contender("decoupled, w > 5 dropped where A > 0, rate 1e-4", "decoupled", DROP_POSITIVE, 120, (8,), 1e-4),
    # Every weight is 1, within 1e-6: -A lp.
    Contender("no correction", "cispo", {"cap_low": 1 - 1e-6, "cap_high": 1 + 1e-6}),
)


async def measure(options: Options) -> list[Figure]:
    """A row per loss and lag; the default loss at a lag has a limit."""
    contenders = CONTENDERS[: options.sized(len(CONTENDERS), 1)]
    wanted = sorted(((one, lag) for one in contenders for lag in one.lags), key=lambda pair: pair[1])
    loop = asyncio.get_running_loop()
    workers = max(1, len(os.sched_getaffinity(0)))
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        running = [
            loop.run_in_executor(pool, _learn, one, lag, options.sized(one.steps, 4)) for one, lag in wanted
        ]
        reports = await asyncio.gather(*running)
    return [_figure(one, lag, report) for (one, lag), report in zip(wanted, reports, strict=True)]


def _learn(contender: Contender, lag: int, steps: int) -> Report:
    lesson = Lesson(
        "retry",
        steps,
        learning_rate=contender.learning_rate,
        loss=contender.loss,
        loss_config=contender.config,
        lag=lag,
        look_every=10,
    )
    report = asyncio.run(learn(lesson))
    print(f"  {contender.title}, lag {lag}: {_curve(report)}", file=sys.stderr, flush=True)
    return report


def _figure(contender: Contender, lag: int, report: Report) -> Figure:
    promised = contender is DEFAULT and lag and max(report.success) >= contender.steps
    longest = report.longest("mismatch_kl", above=SUSTAINED_KL)
    note = f"every 10 steps: {_curve(report)}; longest run of mismatch KL > {SUSTAINED_KL}: {longest}"
    return Figure(
        f"success on `retry`, lag {lag}, {contender.title}",
        "",
        (report.success[max(report.success)],),
        limit=Limit(TARGET, "", at_most=False) if promised else None,
        note=note,
    )


def _curve(report: Report) -> str:
    return " ".join(
        f"{report.success[step]:.2f}".removeprefix("0") for step in sorted(report.success) if step
    )
