"""The table of all figures, as a terminal, README.md and results/ show it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, number

_BEGIN, _END = "<!-- figures: written by python -m benchmarks -->", "<!-- end of figures -->"
_HEAD = ("command", "what", "figure", "spread", "ratio against a peer, or limit", "load before")


@dataclass(frozen=True, slots=True)
class Result:
    """What one benchmark measured. load_before: of the machine; wall_s: how long the benchmark took."""

    figures: tuple[Figure, ...]
    load_before: float
    wall_s: float
    at: datetime
    commit: str

    def to_json(self) -> dict[str, Any]:
        """For results/*.json: the rows of the table with their samples."""
        return {
            "at": self.at.isoformat(timespec="seconds"),
            "commit": self.commit,
            "load_before": round(self.load_before, 2),
            "wall_s": round(self.wall_s, 1),
            "figures": [{**figure.to_json(), "row": list(_cells(figure))} for figure in self.figures],
        }


def line(figure: Figure) -> str:
    """One figure for a terminal."""
    return "  " + " | ".join(_cells(figure))


def markdown(results: Mapping[str, Result]) -> str:
    """The table of what was measured now."""
    return _table({name: result.to_json() for name, result in results.items()})


def write_readme(readme: Path, folder: Path, names: Sequence[str]) -> None:
    """Put the newest kept figures of every benchmark between the README's two marks."""
    kept = {
        name: json.loads(path.read_text()) for name in names if (path := folder / f"{name}.json").exists()
    }
    machines = sorted({result["machine"] for result in kept.values()})
    text = "\n\n".join([_BEGIN, f"Machine: {' / '.join(machines)}.", _table(kept), _END])
    before, begin, rest = readme.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{readme} has lost its marks {_BEGIN!r} and {_END!r}: put them back")
    readme.write_text(before + text + after)


def _table(results: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [_HEAD, ("---",) * len(_HEAD)]
    for name, result in results.items():
        for figure in result["figures"]:
            rows.append((f"`python -m benchmarks {name}`", *figure["row"], f"{result['load_before']:.1f}"))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(figure: Figure) -> tuple[str, str, str, str]:
    return figure.name, f"**{number(figure.value)}** {figure.unit}", figure.spread, figure.against
