"""Writes the reference pages that come from the code; --check only names those that are out of date."""

import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from docs import asyncapi
from docs.provoked import PROVOKED_BY
from prometheus_client import REGISTRY
from prometheus_client.metrics import MetricWrapperBase
from pydantic_settings import BaseSettings

from episodes import ATTRIBUTABLE, MISSING, EpisodeFailure
from identities.tenants import ONLY_TENANT, VARIABLE
from service_kit.main import shown_default
from service_kit.settings import variables

ROOT: Final = Path(__file__).parents[1]
PAGES: Final = ROOT / "docs/reference"
SERVICES: Final = tuple(
    sorted(path.name for path in (ROOT / "services").iterdir() if (path / "app.py").exists())
)
_PROGRAMS: Final = {"event_bus": "upcycle-provision --watch"}
_TENANT: Final = (
    "| variable | default | meaning |\n|---|---|---|",
    f"| `{VARIABLE}` | `{ONLY_TENANT}` | The tenant that the process works for. From the environment alone: "
    "the names of durables, subjects and objects are made with it before settings are read. |",
)
_NOTE: Final = "<!-- Written by docs/generate.py. Edit the code, then run `make reference`. -->\n"


def settings() -> str:
    """Every environment variable of every service."""
    lines = [_NOTE, "# Settings\n", inspect.cleandoc(
        """
        Each service reads its settings once, at its start, from environment variables or from a dotenv file
        that `<PREFIX>SETTINGS_FILE` names; the environment wins. A variable with a known prefix that no
        service has, and a value that is not allowed, end the process with status 2 and name the nearest
        valid variable.
        """
    ), ""]  # fmt: skip
    lines += ["## every process\n", *_TENANT, ""]
    for service in (*SERVICES, "event_bus"):
        for cls in _settings_classes(service):
            lines += [
                f"## {_PROGRAMS.get(service, service)}\n",
                inspect.cleandoc(cls.__doc__ or ""),
                "",
                *_variables_table(cls),
                "",
            ]
    return "\n".join(lines)


def _settings_classes(service: str) -> list[type[BaseSettings]]:
    try:
        module = importlib.import_module(f"{service}.settings")
    except ModuleNotFoundError:
        return []
    classes = [
        cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__
    ]
    return [cls for cls in classes if issubclass(cls, BaseSettings)]


def _variables_table(cls: type[BaseSettings]) -> Iterator[str]:
    yield "| variable | default | meaning |\n|---|---|---|"
    for name, field in variables(cls).items():
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        yield f"| `{name}` | {_code(shown_default(field))} | {meaning} |"


def _code(text: str) -> str:
    return f"`{text}`" if text else "empty"


def metrics() -> str:
    """Every instrument that a service registers."""
    rows: dict[str, tuple[str, str, str, str]] = {}
    for service in SERVICES:
        for module in _modules(service):
            if module.rpartition(".")[2] in ("telemetry", "metrics"):
                rows |= _instruments(importlib.import_module(module), service)
    for lib in ("event_bus", "sql_store", "service_kit", "grpc_edge"):
        for module in _modules(lib):
            if module.rpartition(".")[2] in ("metrics", "relay", "idleness"):
                rows |= _instruments(importlib.import_module(module), f"every service ({lib})")
    lines = [
        _NOTE,
        "# Metrics\n",
        "Each service serves them at `/metrics` on its `HTTP_PORT`, for Prometheus.\n",
    ]
    lines.append("| metric | kind | labels | of | meaning |\n|---|---|---|---|---|")
    for name, (kind, labels, owner, meaning) in sorted(rows.items()):
        lines.append(f"| `{name}` | {kind} | {labels} | {owner} | {meaning} |")
    return "\n".join(lines) + "\n"


def _modules(package: str) -> list[str]:
    root = importlib.import_module(package)
    return [
        found.name
        for found in pkgutil.walk_packages(root.__path__, f"{package}.")
        if "migrations" not in found.name
    ]


def _instruments(module: Any, owner: str) -> dict[str, tuple[str, str, str, str]]:
    known = set(REGISTRY._collector_to_names)  # a registry has no public list of its collectors
    found = {}
    for value in vars(module).values():
        if isinstance(value, MetricWrapperBase) and value in known:
            described = next(iter(value.describe()))
            suffix = "_total" if described.type == "counter" else ""
            labels = ", ".join(f"`{label}`" for label in value._labelnames)
            found[described.name + suffix] = (described.type, labels, owner, described.documentation)
    return found


def failures() -> str:
    """Whose failure each kind is."""
    lines = [_NOTE, "# Failures of episodes\n", inspect.cleandoc(
        """
        Whose failure it was is decided by where it arose.

        **Missing**: no answer caused it. There is no reward, the member is played again, up to three times in
        all, and an evaluation names what is still missing.

        **Attributable**: the policy caused it, by a token that it had sampled. The episode counts as 0 at its
        first attempt: in evaluations, for the gate, and in training runs whose `training.score_failures` is
        not switched off. Kind, rule and what happened, with the traceback, are kept with the trajectory:
        `upcycle trajectories show ID`.

        An episode that a budget of turns or tokens, or the model's context, cut off after a turn is neither:
        its scenario grades an empty answer, on the state that the turns left.

        [The time of an episode](../understand/time-of-an-episode.md) has the limits, along the line of time.
        """
    ), ""]  # fmt: skip
    for heading, rows in (("Missing", MISSING), ("Attributable", ATTRIBUTABLE)):
        lines += [f"## {heading}\n", "| kind | where it arose | a test that provokes it |\n|---|---|---|"]
        lines += [f"| `{kind}` | {text} | {_provoking(kind)} |" for kind, text in rows.items()] + [""]
    return "\n".join(lines)


def _provoking(kind: EpisodeFailure) -> str:
    path, test = PROVOKED_BY[kind]
    return f"[`{test}`](../../{path})"


def grpc() -> str:
    """Every rpc and message of the public contracts, with the comments of the .proto files."""
    lines = [_NOTE, "# gRPC\n", inspect.cleandoc(
        """
        The contracts are the files below `proto/upcycle/api`; each server also answers gRPC reflection. A
        failed call carries `google.rpc.ErrorInfo` with a reason in `grpc-status-details-bin`.
        """
    ), ""]  # fmt: skip
    for path in sorted((ROOT / "proto/upcycle/api").glob("*/v1/service.proto")):
        text = path.read_text()
        package = re.search(r"^package (\S+);", text, re.M)
        lines += [
            f"## {package[1] if package else path.parent.parent.name}\n",
            "```protobuf",
            text.strip(),
            "```",
            "",
        ]
    return "\n".join(lines)


def cli() -> str:
    """Every command, with its flags."""
    from upcycle.cli.main import build_app, explain

    os.environ["COLUMNS"] = "120"
    app = build_app()
    explain(app)
    return _NOTE + app.generate_docs(heading_level=1, usage_name="upcycle") + "\n"


def exit_codes() -> str:
    """What the exit status of `upcycle` and of a service means."""
    from service_kit import service
    from upcycle.cli.exits import TABLE

    head = [_NOTE, "# Exit codes\n", "## upcycle\n", TABLE, "", "## Services\n"]
    return "\n".join([*head, inspect.cleandoc(f"""
        | status | meaning |
        |---|---|
        | 0 | stopped by a signal, everything in flight handed over |
        | {service.EXIT_FAILED} | a component did not start, or did not stop within its deadline |
        | 2 | the settings are wrong; each problem is a line on stderr |
        | {service.EXIT_DIED} | a part that must live as long as the process died; a supervisor restarts it |
        """), ""])  # fmt: skip


def events() -> str:
    """Every fact and command on the bus."""
    return "\n".join([_NOTE, "# Events\n", inspect.cleandoc(
        """
        Facts and commands on NATS JetStream, as `up.<tenant>.evt.<kind>.<model>` and
        `up.<tenant>.task.<kind>.<pool>.<model>`. Decisions are published on
        `up.<tenant>.decision.<kind>.<model>.<about>.<author>`, and the first one wins. Schemas, addresses,
        operations: [AsyncAPI 3](asyncapi.yaml).
        """
    ), "", asyncapi.events_page()])  # fmt: skip


def run_configuration() -> str:
    """Every field of a run."""
    from upcycle.run_config.reference import page

    return _NOTE + page() + loss_options()


OFF_UNTIL_SET: Final = {"sampler_weight_high": None, "off_policy_row_limit": None, "top_entropy": 1.0}
"""Defaults of what stands beside every loss, where they are not 0; None: it does nothing until it is set."""


def loss_options() -> str:
    """Every key of loss_config: of the losses, with the defaults of the mathematics, and beside them."""
    from grpo_math.objective import LOSSES as KINDS
    from upcycle.run_config import LOSSES, OBJECTIVE_OPTIONS

    lines = ["\n## [training.loss_config]\n", "All are numbers; `0 (off), or 1` is a switch. Of a loss:\n"]
    lines.append("| loss | option | default | limits |\n|---|---|---|---|")
    for name, loss in LOSSES.items():
        defaults = {field.name: field.default for field in fields(KINDS[name])}
        rows = [(f"`{key}`", f"{defaults[key]:g}", one.range_text) for key, one in loss.options.items()]
        lines += [f"| `{name}` | {' | '.join(row)} |" for row in rows or [("none", "", "")]]
    lines.append("\nBeside a loss:\n\n| option | default | limits |\n|---|---|---|")
    for key, one in OBJECTIVE_OPTIONS.items():
        default = OFF_UNTIL_SET.get(key, 0.0)
        lines.append(f"| `{key}` | {'off' if default is None else f'{default:g}'} | {one.range_text} |")
    return "\n".join(lines) + "\n"


def decisions() -> str:
    """What each README of a service or library decides, and what it rejects."""
    lines = [_NOTE, "# Decisions of services and libraries\n", inspect.cleandoc(
        """
        The sections *Decisions* of the READMEs below `services/` and `libs/`. What concerns all services is
        an ADR: [FastStream](../adr/0001-faststream.md).
        """
    ), ""]  # fmt: skip
    for readme in _readmes():
        if found := re.search(r"^## Decisions\n+(.*?)(?=^#|\Z)", readme.read_text(), re.M | re.S):
            path = readme.relative_to(ROOT).as_posix()
            text = found[1].rstrip()
            lines += [f"## {readme.parent.name}\n", f"From [`{path}`](../../{path}).\n", text, ""]
    return "\n".join(lines)


def _readmes() -> list[Path]:
    """Of services, then of libraries."""
    return [file for tree in ("services", "libs") for file in sorted((ROOT / tree).glob("*/README.md"))]


GENERATED: Final[dict[str, Callable[[], str]]] = {
    "settings.md": settings,
    "metrics.md": metrics,
    "run-configuration.md": run_configuration,
    "grpc.md": grpc,
    "events.md": events,
    "asyncapi.yaml": asyncapi.document,
    "cli.md": cli,
    "exit-codes.md": exit_codes,
    "failures.md": failures,
    "decisions.md": decisions,
}


def main(arguments: list[str]) -> int:
    """Write every page, or those named; with --check write none and name those that are out of date."""
    PAGES.mkdir(parents=True, exist_ok=True)
    names = [name for name in arguments if name != "--check"] or list(GENERATED)
    outdated = []
    for name in names:
        page, path = GENERATED[name](), PAGES / name
        if "--check" not in arguments:
            path.write_text(page)
        elif not path.exists() or path.read_text() != page:
            outdated.append(name)
    if outdated:
        print(f"docs/reference: {', '.join(outdated)} out of date; run `make reference`")
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
