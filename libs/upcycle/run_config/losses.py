"""Losses, their options with limits, and which other settings each allows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from upcycle.run_config.limits import ANY, NOT_NEGATIVE, POSITIVE, SWITCH, Limit
from upcycle.run_config.names import SFT_LOSS, Say, unknown

_BELOW_ONE: Final = Limit(0, 1, above=True, below=True)
_FROM_ZERO_BELOW_ONE: Final = Limit(0, 1, below=True)
_ABOVE_ONE: Final = Limit(1, above=True)
_ABOVE_ONE_OR_OFF: Final = Limit(1, above=True, zero_is_off=True)
_KL: Final = "kl_coefficient"
_CORRECTION: Final = "kl_bias_correction"
_ANCHOR: Final = "proximal_anchor"
_WEIGHT: Final = "sampler_weight_high"


@dataclass(frozen=True, slots=True)
class Loss:
    """options: its own keys of loss_config. has_anchor: its ratio may be to the proximal policy instead of
    the sampler (`proximal_anchor`), and only then may a sampler weight stand beside it."""

    options: Mapping[str, Limit] = field(default_factory=dict)
    has_anchor: bool = False


_CLIPS: Final = {"clip_low": _BELOW_ONE, "clip_high": POSITIVE}
_VESPO: Final = ("k_positive", "lambda_positive", "k_negative", "lambda_negative")

LOSSES: Final[Mapping[str, Loss]] = {
    "ppo": Loss({**_CLIPS, "dual_clip": _ABOVE_ONE_OR_OFF, "ratio_cap": _ABOVE_ONE_OR_OFF}, has_anchor=True),
    "importance_sampling": Loss(),
    "cispo": Loss({"cap_low": _FROM_ZERO_BELOW_ONE, "cap_high": _ABOVE_ONE}, has_anchor=True),
    "gspo": Loss(_CLIPS, has_anchor=True),
    "dro": Loss({"beta": POSITIVE}),
    "sapo": Loss({"tau_positive": POSITIVE, "tau_negative": POSITIVE}, has_anchor=True),
    "dppo": Loss({"max_rise": POSITIVE, "max_fall": POSITIVE, "pull": ANY}),
    "ipo": Loss({"max_move": POSITIVE, "pull": ANY}),
    "decoupled": Loss(
        {
            **_CLIPS,
            "weight_cap": Limit(1),
            "weight_low": _FROM_ZERO_BELOW_ONE,
            "clamp_weight": SWITCH,
            "drop_positive_only": SWITCH,
        }
    ),
    "vespo": Loss(dict.fromkeys(_VESPO, ANY), has_anchor=True),
    SFT_LOSS: Loss(),
}
TRAINING_LOSSES: Final = tuple(sorted(set(LOSSES) - {SFT_LOSS}))
NO_TRAINING_LOSS: Final = {
    SFT_LOSS: "is the loss of SFT and compares no rollouts, which a training run does: choose one of "
    f"{', '.join(TRAINING_LOSSES)}; conversations are trained on by `upcycle train --sft`"
}

OBJECTIVE_OPTIONS: Final[Mapping[str, Limit]] = {
    _KL: NOT_NEGATIVE,
    _CORRECTION: SWITCH,
    "entropy_bonus": ANY,
    "off_policy_row_limit": ANY,
    "top_entropy": Limit(0, 1, above=True),
    _ANCHOR: SWITCH,
    _WEIGHT: Limit(1),
    "sampler_weight_low": _FROM_ZERO_BELOW_ONE,
    "sampler_weight_drop": SWITCH,
    "sampler_weight_rows": SWITCH,
}
"""Keys of loss_config that belong to no loss but to what stands beside it."""


def loss_refusals(
    loss: str,
    options: Mapping[str, float],
    *,
    kl_estimator: str = "k3",
    kl_placement: str = "loss",
    say: Say = str,
) -> list[str]:
    """Why this loss cannot be computed with these options; empty where it can. options: loss_config."""
    refused = [] if loss in LOSSES else [unknown(say("loss"), loss, LOSSES)]
    if loss in LOSSES:
        refused += _about_options(loss, options, say)
        refused += _about_anchor(loss, options, say)
    refused += _about_kl(options, (kl_estimator, kl_placement), say)
    return refused


def _about_options(loss: str, options: Mapping[str, float], say: Say) -> Iterator[str]:
    known = {**LOSSES[loss].options, **OBJECTIVE_OPTIONS}
    for name, value in sorted(options.items()):
        if name not in known:
            yield unknown(f"{say('loss_config')} of loss {loss!r}:", name, known)
        elif not known[name].holds(value):
            yield known[name].refusal(f"{say('loss_config')}[{name!r}]", value)


def _about_anchor(loss: str, options: Mapping[str, float], say: Say) -> Iterator[str]:
    where, is_proximal = say("loss_config"), bool(options.get(_ANCHOR, 0.0))
    if is_proximal and not LOSSES[loss].has_anchor:
        fitting = ", ".join(name for name, one in LOSSES.items() if one.has_anchor)
        yield f"{where}: loss {loss!r} has no anchor to choose; {_ANCHOR} fits {fitting}"
    if _WEIGHT in options:
        if not (is_proximal and LOSSES[loss].has_anchor):
            yield (
                f"{where}: {_WEIGHT} beside loss {loss!r} would count the sampler twice, because its ratio "
                f"holds it or it has none: set {_ANCHOR} to 1 on a loss with an anchor, or leave it out"
            )
        return
    idle = sorted(name for name in options if name.startswith("sampler_weight_"))
    if idle:
        without = f"{where}: {', '.join(idle)} without {_WEIGHT}"
        yield f"{without}: nothing reads it; set {_WEIGHT}, or leave it out"


def _about_kl(options: Mapping[str, float], choice: tuple[str, str], say: Say) -> Iterator[str]:
    chosen = zip(("kl_estimator", "kl_placement"), choice, ("k3", "loss"), strict=True)
    idle = [f"{say(name)} {value!r}" for name, value, default in chosen if value != default]
    if _CORRECTION in options:
        idle.append(_CORRECTION)
    if idle and not options.get(_KL, 0.0):
        yield (
            f"{', '.join(idle)} without {_KL} is not read: give {say('loss_config')} a {_KL} > 0, "
            "or leave it out"
        )
    elif options.get(_CORRECTION, 0.0) and choice[1] == "reward":
        yield (
            f"{say('loss_config')}: {_CORRECTION} is a factor of the loss, and with "
            f"{say('kl_placement')} 'reward' the loss's own ratio already weighs the divergence: leave it out"
        )
