"""One production incident in a SQLite database, generated from a seed, and the tools that look into it.

The alerting service is never at fault: its stack trace ends in the service that is. That service's logs show
a symptom, and its deploys say whether the symptom is the cause or only what a bad deployment looks like. So
no single observation decides the diagnosis. The database holds evidence only; the answer is not in it.
"""

import random
import sqlite3
import time
from dataclasses import dataclass

from examples.incident.names import Names, Split, draw_services

BAD_DEPLOY = "bad_deploy"
# What the logs of the service at fault say, by cause. A bad deployment shows one of these, too.
SYMPTOMS = {
    "database_down": "database refused connection",
    "out_of_memory": "worker killed, heap full",
    "pool_exhausted": "no free connection in pool",
}
ERROR_CLASS = {
    BAD_DEPLOY: "change",
    "database_down": "dependency",
    "out_of_memory": "capacity",
    "pool_exhausted": "capacity",
}
CAUSES = tuple(ERROR_CLASS)
UPSTREAM_ERROR = "UpstreamError"
BYSTANDER_ERRORS = ("KeyError", "TypeError", "ValueError")

_SCHEMA = """
CREATE TABLE services (name TEXT PRIMARY KEY);
CREATE TABLE deploys (service TEXT REFERENCES services, version INTEGER, minutes_ago INTEGER);
CREATE TABLE issues (id TEXT PRIMARY KEY, service TEXT REFERENCES services, error TEXT);
CREATE TABLE frames (issue TEXT REFERENCES issues, depth INTEGER, service TEXT, file TEXT, line INTEGER);
CREATE TABLE logs (service TEXT REFERENCES services, minutes_ago INTEGER, message TEXT);
"""
_MINUTES_PER_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Incident:
    """What happened, hidden from the agent. `symptom` is a key of SYMPTOMS; it differs from `cause` only for
    a bad deployment."""

    split: Split
    seed: int
    alerting: str
    faulty: str
    bystanders: tuple[str, ...]
    cause: str
    symptom: str

    @property
    def services(self) -> tuple[str, ...]:
        """Every service of the incident."""
        return (self.alerting, self.faulty, *self.bystanders)


def draw_incident(split: Split, seed: int, names: Names = "new") -> Incident:
    """The incident of a seed: same arguments, same incident. Causes take turns, so that any run of
    consecutive seeds is balanced over the families."""
    rng = random.Random(f"{split}/{seed}")
    alerting, faulty, *bystanders = draw_services(rng, split, 4, names)
    cause = CAUSES[seed % len(CAUSES)]
    symptom = rng.choice(tuple(SYMPTOMS)) if cause == BAD_DEPLOY else cause
    return Incident(split, seed, alerting, faulty, tuple(bystanders), cause, symptom)


class World:
    """The database of one incident with the four tools over it. `num_calls` counts every tool call."""

    def __init__(self, incident: Incident, *, tool_delay_s: float = 0.0) -> None:
        """tool_delay_s: how long every tool call takes at least, as a call over a network would."""
        self.incident = incident
        self.num_calls = 0
        self._tool_delay_s = tool_delay_s
        self._db = sqlite3.connect(":memory:")
        _fill(self._db, incident)

    def close(self) -> None:
        """Free the database."""
        self._db.close()

    def _called(self) -> None:
        self.num_calls += 1
        if self._tool_delay_s:
            time.sleep(self._tool_delay_s)

    def list_issues(self) -> str:
        """Open issues, one per line: error, id and the service that raised it."""
        self._called()
        rows = self._db.execute("SELECT error, id, service FROM issues ORDER BY rowid").fetchall()
        return "\n".join(f"{error} #{issue} ({service})" for error, issue, service in rows)

    def get_stack_trace(self, issue_id: str) -> str:
        """The stack of an issue, innermost call last."""
        self._called()
        issue_id = issue_id.removeprefix("#")
        found = self._db.execute("SELECT error FROM issues WHERE id = ?", (issue_id,)).fetchone()
        if found is None:
            return "no such issue"
        rows = self._db.execute(
            "SELECT service, file, line FROM frames WHERE issue = ? ORDER BY depth", (issue_id,)
        )
        frames = [f"{service} {file} line {line}" for service, file, line in rows]
        return f"{found[0]} #{issue_id}\n" + "\ncalls ".join(frames)

    def search_logs(self, service: str) -> str:
        """Recent log lines of a service, oldest first."""
        self._called()
        rows = self._db.execute(
            "SELECT message FROM logs WHERE service = ? ORDER BY minutes_ago DESC", (service,)
        ).fetchall()
        return "\n".join(message for (message,) in rows) or "no such service"

    def recent_deploys(self, service: str) -> str:
        """Deployments of a service, newest first, with their age."""
        self._called()
        rows = self._db.execute(
            "SELECT version, minutes_ago FROM deploys WHERE service = ? ORDER BY minutes_ago", (service,)
        ).fetchall()
        return "\n".join(f"v{version} {_age(minutes)}" for version, minutes in rows) or "no such service"


def _age(minutes: int) -> str:
    days, rest = divmod(minutes, _MINUTES_PER_DAY)
    return f"{days} days ago" if days else f"{rest} minutes ago"


def _fill(db: sqlite3.Connection, incident: Incident) -> None:
    rng = random.Random(f"{incident.split}/{incident.seed}/evidence")
    db.executescript(_SCHEMA)
    db.executemany("INSERT INTO services VALUES (?)", [(name,) for name in incident.services])
    _add_issues(db, incident, rng)
    _add_deploys(db, incident, rng)
    _add_logs(db, incident, rng)
    db.commit()


def _add_issues(db: sqlite3.Connection, incident: Incident, rng: random.Random) -> None:
    stacks = {
        incident.alerting: (
            UPSTREAM_ERROR,
            ((incident.alerting, "handler.py"), (incident.faulty, "client.py")),
        )
    }
    errors = rng.sample(BYSTANDER_ERRORS, len(incident.bystanders))
    for name, error in zip(incident.bystanders, errors, strict=True):
        stacks[name] = (error, ((name, "handler.py"), (name, "parser.py")))
    ids = rng.sample(range(1, 10), len(stacks))
    for issue, name in zip(map(str, ids), rng.sample(sorted(stacks), len(stacks)), strict=True):
        error, frames = stacks[name]
        db.execute("INSERT INTO issues VALUES (?, ?, ?)", (issue, name, error))
        for depth, (service, file) in enumerate(frames):
            db.execute(
                "INSERT INTO frames VALUES (?, ?, ?, ?, ?)",
                (issue, depth, service, file, rng.randint(10, 59)),
            )


def _add_deploys(db: sqlite3.Connection, incident: Incident, rng: random.Random) -> None:
    for name in incident.services:
        # Someone always deploys somewhere: only the faulty service's deploys count.
        fresh = incident.cause == BAD_DEPLOY if name == incident.faulty else rng.random() < 0.25
        version = rng.randint(11, 58)
        newest = rng.randint(2, 30) if fresh else rng.randint(2, 9) * _MINUTES_PER_DAY
        older = newest + rng.randint(3, 30) * _MINUTES_PER_DAY
        db.execute("INSERT INTO deploys VALUES (?, ?, ?)", (name, version + 1, newest))
        db.execute("INSERT INTO deploys VALUES (?, ?, ?)", (name, version, older))


def _add_logs(db: sqlite3.Connection, incident: Incident, rng: random.Random) -> None:
    for name in incident.services:
        db.execute("INSERT INTO logs VALUES (?, ?, ?)", (name, rng.randint(20, 59), "service started"))
        if name == incident.faulty:
            message = SYMPTOMS[incident.symptom]
        elif name == incident.alerting:
            message = "bad reply from upstream"
        else:
            message = "slow request"
        db.execute("INSERT INTO logs VALUES (?, ?, ?)", (name, rng.randint(1, 19), message))
