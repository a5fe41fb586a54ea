"""The one place where values become HTML."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from upcycle.reporting.words import number, percent
from upcycle.run_pages import texts
from upcycle.run_pages.charts import charts_of, gains_of
from upcycle.run_pages.errors import PageTooLarge
from upcycle.run_pages.matrix import matrix_of
from upcycle.run_pages.values import RunPage, ShownEpisode
from upcycle.wording import amount

MAX_PAGE_BYTES: Final = 32 * 1024 * 1024
"""What browsers open without a pause."""
MAX_ROWS: Final = 200
"""Of a table of families, subscores or kinds of failures."""
MAX_TURNS: Final = 200
"""Of one episode: its first and its last."""
MAX_CALLS: Final = 50
"""Of one turn."""
_TEMPLATES: Final = Path(__file__).parent / "templates"
_SURENESS: Final = (0.9, 0.5, 0.2, 0.05)


def page_of(page: RunPage, *, max_bytes: int = MAX_PAGE_BYTES) -> str:
    """The whole page. Raises PageTooLarge."""
    environment = _environment()
    parts, size = [], 0
    for part in environment.get_template("page.html").generate(**_values(page, environment)):
        size += len(part.encode())
        if size > max_bytes:
            raise PageTooLarge(
                f"the page of {texts.name(page.header.run_id)} with {amount(len(page.shown), 'episode')} is "
                f"over {max_bytes / 2**20:.3g} MiB, the largest that browsers open well",
                "show fewer with --limit, or leave out --tokens",
            )
        parts.append(part)
    return "".join(parts)


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=texts.shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        name=texts.name, finite=texts.finite, percent=percent, number=number, sureness=sureness
    )
    environment.globals.update(space=texts.Space, turns_of=turns_of)
    return environment


def _values(page: RunPage, environment: Environment) -> Mapping[str, Any]:
    anchors = {one.row.episode_id: f"e{at}" for at, one in enumerate(page.shown, start=1)}
    styles, script = (_source(environment, name) for name in ("page.css", "page.js"))
    return {
        "page": page,
        "anchors": anchors,
        "matrix": matrix_of(page.episodes, anchors),
        "charts": charts_of(page.steps),
        "gains": gains_of(page.verdicts),
        "num_missing": sum(one.reward is None for one in page.episodes),
        "max_rows": MAX_ROWS,
        "max_calls": MAX_CALLS,
        "policy": _policy(styles, script),
        "css": styles,
        "js": script,
    }


def _source(environment: Environment, name: str) -> Any:
    """A file of ours, which no value of a run is part of."""
    from markupsafe import Markup

    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704


def _policy(styles: str, script: str) -> str:
    """What the page may load: nothing; what it may run: its own style sheet and script."""
    allowed = f"style-src {_digest(styles)}; script-src {_digest(script)}"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def sureness(logprob: float) -> int:
    """0 for a token that was nearly certain, 4 for a gamble."""
    probability = math.exp(min(logprob, 0.0)) if math.isfinite(logprob) else 0.0
    return next((at for at, floor in enumerate(_SURENESS) if probability >= floor), len(_SURENESS))


def turns_of(episode: ShownEpisode) -> Sequence[tuple[int, Any]]:
    """(number, turn) of the first and the last turns; None where those between are left out."""
    numbered = list(enumerate(episode.turns, start=1))
    if len(numbered) <= MAX_TURNS:
        return numbered
    half = MAX_TURNS // 2
    return [*numbered[:half], (len(numbered) - MAX_TURNS, None), *numbered[-half:]]
