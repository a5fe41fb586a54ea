"""Settings: those of an old machine are taken over, with other names, units and choices, and exceptions."""

import random
from dataclasses import dataclass
from typing import Final

from ..machine.state import HOME, Computer, Setting
from ..problems import Calls, Category, ComputerProblem, Deed, Goal, Plan, Want, noted, opened, shell, typed
from .common import RULES, is_noted, page

_EXPORT: Final = f"{HOME}/old-machine/export.ini"


@dataclass(frozen=True, slots=True)
class _Pair:
    """old, new: names. rule: how the value changes, in words. values: (old, new) ones that may be drawn."""

    old: str
    new: str
    rule: str
    values: tuple[tuple[str, str], ...]
    choices: tuple[str, ...] = ()


def _numbers(*of: int, times: int = 1) -> tuple[tuple[str, str], ...]:
    return tuple((str(one), str(one * times)) for one in of)


def _each(*pairs: str) -> tuple[tuple[str, str], ...]:
    """`1 dark` as ("1", "dark"); one word as a value that stays."""
    return tuple((one.split()[0], one.split()[-1]) for one in pairs)


_PAIRS: Final = (
    _Pair(
        "ui/theme",
        "display.theme",
        "0 light, 1 dark, 2 contrast",
        _each("0 light", "1 dark", "2 contrast"),
        ("auto", "light", "dark", "contrast"),
    ),
    _Pair("ui/sleep_min", "display.sleep_s", "minutes become seconds", _numbers(3, 4, 7, 12, times=60)),
    _Pair("ui/zoom", "display.scale", "1.25 becomes 125", _each("1.25 125", "1.5 150", "1.75 175")),
    _Pair(
        "kbd/map",
        "input.layout",
        "as it is, in small letters",
        _each("DE de", "FR fr", "PL pl"),
        ("us", "de", "fr", "pl", "it"),
    ),
    _Pair("kbd/delay_cs", "input.delay_ms", "hundredths become thousandths", _numbers(20, 35, 45, times=10)),
    _Pair("snd/volume", "sound.level", "of 10 becomes of 100", _numbers(3, 4, 6, 8, times=10)),
    _Pair(
        "snd/mute_start",
        "sound.chime",
        "the opposite: yes becomes off, no becomes on",
        _each("yes off", "no on"),
        ("ask", "on", "off"),
    ),
    _Pair("net/proxy", "network.proxy", "as it is", _each("proxy.ours.com:3128", "gate.ours.com:8080")),
    _Pair("net/dns", "network.resolver", "as it is", _each("10.0.0.53", "10.1.1.53")),
    _Pair("bak/every_h", "backup.interval_min", "hours become minutes", _numbers(2, 5, 6, 9, times=60)),
    _Pair("bak/dir", "backup.target", "as it is", _each("/mnt/vault", "/mnt/attic")),
    _Pair(
        "pow/lid",
        "power.lid",
        "S sleep, N nothing, O off",
        _each("S sleep", "N nothing", "O off"),
        ("ask", "sleep", "nothing", "off"),
    ),
)
_DEFAULTS: Final = {
    "display.theme": "auto", "display.sleep_s": "90", "display.scale": "100", "input.layout": "us",
    "input.delay_ms": "500", "sound.level": "55", "sound.chime": "ask", "network.proxy": "none",
    "network.resolver": "auto", "backup.interval_min": "1440", "backup.target": "none", "power.lid": "ask",
}  # fmt: skip

_OTHERS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "display.night": ("some", ("on", "some", "off")),
    "input.tap": ("light", ("firm", "light", "none")),
    "sound.balance": ("middle", ("left", "middle", "right")),
    "network.name": ("ana-2", ()),
    "backup.keep": ("9", ()),
    "power.button": ("menu", ("off", "menu", "sleep")),
}
"""Settings that no rule names: they stay."""


def _rules(title: str) -> str:
    return page(
        "Moving to a new machine. The export of the old one is ~/old-machine/export.ini; its names mean "
        "here:",
        *(f"- {one.old}: {one.new}; {one.rule}" for one in _PAIRS),
        "A setting that is managed stays. So does what the owner's note says of this machine. Settings "
        "that are not "
        "in the list are not taken over; nor are lines that a # switches off.",
        "Where a name is in the export twice, the later line counts.",
        f"At the end write a note {title}: the names of the old settings of the list that were in the "
        f"export and were "
        "not taken over, managed ones and those of the owner's note, one a line, in the order of the "
        "alphabet.",
    )


def _export(rng: random.Random, values: dict[str, str], twice: _Pair, off: _Pair) -> str:
    lines = [f"{name}={value}" for name, value in values.items()]
    rng.shuffle(lines)
    earlier = next(value for value, _ in twice.values if value != values[twice.old])
    lines.insert(0, f"{twice.old}={earlier}")
    lines += [f"# {off.old}={off.values[0][0]}", "dbg/trace=0", "ui/wallpaper=hills.jpg"]
    return page("; export of the old machine", *lines)


def make(rng: random.Random) -> ComputerProblem:
    pairs = rng.sample(_PAIRS, len(_PAIRS))
    taken, managed, kept, off = pairs[:7], pairs[7:9], pairs[9], pairs[10]
    drawn = {one.old: rng.choice(one.values) for one in (*taken, *managed, kept)}
    machine = Computer()
    title = rng.choice(("Not taken over", "Left behind", "Settings that stay"))
    given = {name: value for name, (value, _) in drawn.items()}
    machine.put(_EXPORT, _export(rng, given, taken[0], off))
    machine.put(f"{HOME}/old-machine/readme.txt", "Taken on 2026-02-27.")
    for one in sorted(_PAIRS, key=lambda pair: pair.new):
        value = _DEFAULTS[one.new]
        machine.settings[one.new] = Setting(value, list(one.choices), is_managed=one in managed)
    machine.settings |= {name: Setting(value, list(choices)) for name, (value, choices) in _OTHERS.items()}
    machine.notes = {"New machine": page("I have set this here already, leave it:", kept.new), "Songs": "la"}
    machine.pages = {"it/new-machine": _rules(title), "it/bins": "Old machines go to the cellar."}
    wants = {one.new: drawn[one.old][1] for one in taken}
    report = "\n".join(sorted(one.old for one in (*managed, kept)))
    sections: dict[str, list[Want]] = {}
    for name, value in wants.items():
        sections.setdefault(name.partition(".")[0], []).append(Want(f"setting:{name}", {"value": value}))
    goals = [Goal(section, tuple(of_one)) for section, of_one in sections.items()]
    goals.append(Goal("note", (is_noted(title, report),), (goals[0].name,)))
    text = (
        "Take the settings of Ana's old machine over to this one, as page it/new-machine of the intranet "
        "says. Ana "
        f"left a note about this machine. {RULES}"
    )
    return ComputerProblem(text, machine, tuple(goals), _plan(wants, noted(title, report)))


def _plan(wants: dict[str, str], report: Calls) -> tuple[Deed, ...]:
    plan = Plan()
    plan.look(*opened("browser", "link:it/new-machine"), *opened("notes", "note:New machine"))
    plan.look(shell(f"cat {_EXPORT}"), *opened("settings"))
    for name, value in wants.items():
        plan.act(*opened("settings", f"section:{name.partition('.')[0]}"), typed(name, value))
    plan.act(*report)
    return tuple(plan.deeds)


SETTINGS = Category("settings", make)
