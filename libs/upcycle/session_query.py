"""Which recorded sessions a training run takes: `key=KEY,group=NAME,label=NAME:VALUE,since=7d,
before=2026-11-01`, or `all`. Pure; planner and command line read it here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from upcycle.session_labels import Labels, checked, read_label

ALL: Final = "all"
LABEL: Final = "label"
"""May be given several times."""
_AGE: Final = re.compile(r"(?P<count>[1-9][0-9]{0,3})(?P<unit>[hd])")
_UNITS: Final = {"h": timedelta(hours=1), "d": timedelta(days=1)}
_KEY: Final = re.compile(r"[a-z0-9]{8,32}")
_GROUP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,39}")
"""As rewards may name it."""
Moment = datetime | timedelta
"""A date, or an age: so long before the run was submitted."""


@dataclass(frozen=True, slots=True)
class SessionQuery:
    """Empty and None mean any. key: of the API key that opened the session. group: as its reward named it.
    since, before: of its reward. labels: all of them must hold."""

    key: str = ""
    group: str = ""
    since: Moment | None = None
    before: Moment | None = None
    labels: Labels = ()

    def span(self, now: datetime) -> tuple[datetime | None, datetime | None]:
        """(since, before) as seen from a moment."""
        return _at(self.since, now), _at(self.before, now)


def parse_sessions(text: str) -> SessionQuery:
    """Raises ValueError, naming the part, its value and what is expected."""
    if text.strip() == ALL:
        return SessionQuery()
    found: dict[str, str | Moment] = {}
    labels: list[str] = []
    for part in text.split(","):
        name, equals, value = (one.strip() for one in part.partition("="))
        if equals and name == LABEL:
            labels.append(read_label(value))
            continue
        if not equals or name not in _READERS:
            known = ", ".join(f"{one}=…" for one in (*_READERS, LABEL))
            raise ValueError(f"{part.strip()!r:.80} is none of {known}, nor {ALL!r}")
        if name in found:
            raise ValueError(f"{name} is given twice")
        found[name] = _READERS[name](value)
    query = SessionQuery(**found, labels=checked(labels))  # type: ignore[arg-type]
    since, before = query.span(datetime.now(UTC))
    if since is not None and before is not None and since >= before:
        raise ValueError(
            f"since is {since:%Y-%m-%d %H:%M} and before {before:%Y-%m-%d %H:%M}: nothing is between"
        )
    return query


def _at(moment: Moment | None, now: datetime) -> datetime | None:
    return now - moment if isinstance(moment, timedelta) else moment


def _key(value: str) -> str:
    if not _KEY.fullmatch(value):
        raise ValueError(
            f"key={value!r:.80} is no id of an API key, 8 to 32 of a-z and digits: `upcycle-model-gateway "
            "list-keys` has them"
        )
    return value


def _group(value: str) -> str:
    if not _GROUP.fullmatch(value):
        raise ValueError(
            f"group={value!r:.80}, expected 1 to 40 of letters, digits, '.', '_', ':' and '-', with a letter "
            "or a digit first"
        )
    return value


def _moment(value: str) -> Moment:
    age = _AGE.fullmatch(value)
    if age is not None:
        return int(age["count"]) * _UNITS[age["unit"]]
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise ValueError(
            f"{value!r:.80} is neither an age such as 24h or 7d nor a date such as 2026-11-01 or "
            "2026-11-01T10:00"
        ) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


_READERS: Final[Mapping[str, Callable[[str], str | Moment]]] = {
    "key": _key,
    "group": _group,
    "since": _moment,
    "before": _moment,
}
