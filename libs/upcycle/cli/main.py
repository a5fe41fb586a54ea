"""Entry point of `upcycle`: names the commands, turns typed errors into one line and an exit status.

`upcycle --help` imports no command, and no parser of Markdown: a list of one-liners needs none.
"""

import inspect
import os
import sys
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NoReturn

import cyclopts

from upcycle.cli.exits import TABLE, Exit
from upcycle.cli.output import fail, refuse
from upcycle.cli.plain_output import keep_plain

PURPOSE = "Turn evaluations into better weights: run evaluations, train on them, promote what is better."

COMMANDS = {
    "init": ("upcycle.cli.init:init", "Write a new project: environment, tasks, player, training run."),
    "up": ("upcycle.cli.up:up", "Start the whole platform on this machine."),
    "demo": ("upcycle.cli.demo:demo", "Close the loop once: evaluate, train, promote, serve."),
    "play": (
        "upcycle.cli.play:play",
        "Play one episode here, without the platform: you, a script, or an OpenAI URL.",
    ),
    "dev": ("upcycle.cli.dev:dev", "Serve an environment over MCP; an edit is picked up at once."),
    "eval": ("upcycle.cli.evaluate:evaluate", "Measure a model on a taskset; the trajectories are kept."),
    "deploy": (
        "upcycle.cli.deploy:deploy_environment",
        "Pack an environment and send it to the platform, whose fleet plays it.",
    ),
    "compare": (
        "upcycle.cli.compare:compare_runs",
        "Compare two evaluations task by task: intervals of B − A, won, lost, tied.",
    ),
    "view": (
        "upcycle.cli.view:view",
        "Write a run as one HTML file: report, curves, tasks × attempts, trajectories.",
    ),
    "check": ("upcycle.cli.check:check", "Play gold answers and cheats of tasks; name what pays for cheats."),
    "train": ("upcycle.cli.train:train", "Train a model on a taskset with online GRPO."),
    "runs": ("upcycle.cli.runs:runs", "List runs; pause, resume, stop or cancel one."),
    "why": ("upcycle.cli.why:why", "What is a run waiting for?"),
    "size": ("upcycle.cli.size:size", "How many cores, how much memory, how long, how expensive."),
    "retention": (
        "upcycle.cli.retention:retention",
        "What is old and needed by nothing; --apply removes it.",
    ),
    "audit-log": ("upcycle.cli.audit_log:audit_log", "Who changed what, as registry and planner noted it."),
    "usage": ("upcycle.cli.usage:usage", "Requests, tokens and cost at the gateway, by key, model, day."),
    "backup": ("upcycle.cli.backup:backup", "Write a stopped platform to a folder."),
    "restore": ("upcycle.cli.backup:restore", "Make a new platform what a backup was."),
    "doctor": ("upcycle.cli.doctor:doctor", "Check what this machine and the platform offer."),
    "set": (
        "upcycle.cli.set_setting:set_setting",
        "Store a key or an address in your profile, or a secret; it asks for the value.",
    ),
    "completion": (
        "upcycle.cli.completion:completion",
        "Print a script that completes in bash, zsh or fish.",
    ),
}
TASKSET_COMMANDS = {
    "list": ("upcycle.cli.taskset_commands:list_tasksets", "What is registered."),
    "show": ("upcycle.cli.taskset_commands:show", "Tasks, sides, environment, revisions of one."),
    "diff": ("upcycle.cli.taskset_commands:diff", "Tasks added, removed, changed between two."),
    "delete": ("upcycle.cli.taskset_commands:delete", "Delete one that nothing refers to."),
    "from": ("upcycle.cli.taskset_from_run:from_run", "A tasks file of what a run failed at."),
    "import": ("upcycle.cli.taskset_import:import_file", "A tasks file of the rows of a data file."),
}
TRAJECTORY_COMMANDS = {
    "list": ("upcycle.cli.trajectories:list_trajectories", "Newest trajectories."),
    "show": ("upcycle.cli.trajectories:show", "Turns, tool calls, reward tree, token log-probabilities."),
    "export": ("upcycle.cli.trajectories:export", "JSON lines of prompt, completion, reward."),
    "review": ("upcycle.cli.trajectory_review:review", "The best paid one by one, and your verdict on each."),
    "regrade": (
        "upcycle.cli.regrade:regrade_run",
        "Grade a run again, by its own source or an edited one; a report.",
    ),
    "alarms": ("upcycle.cli.trajectory_review:alarms", "What the monitors of reward hacks saw."),
}
MODEL_COMMANDS = {
    "list": ("upcycle.cli.models:list_models", "Models and their heads."),
    "import": ("upcycle.cli.models:import_model", "Register a Hugging Face directory as a model."),
    "create": ("upcycle.cli.create_model:create", "A tiny Qwen3 of random weights, as a folder to import."),
    "fork": ("upcycle.cli.models:fork", "A new model that starts from a checkpoint."),
    "checkpoints": ("upcycle.cli.models:checkpoints", "The checkpoint tree, oldest first."),
    "head": ("upcycle.cli.models:head", "The promoted checkpoint; --set moves it."),
    "canary": (
        "upcycle.cli.canary_releases:canary",
        "A share of the conversations for another checkpoint; its audit.",
    ),
    "compare": ("upcycle.cli.compare_versions:compare", "Two versions by sessions that have their reward."),
    "hold": ("upcycle.cli.holds:hold", "Have an engine serve a version beside what it follows."),
    "holds": ("upcycle.cli.holds:holds", "What engines hold, for which holder and until when."),
    "release": ("upcycle.cli.holds:release", "End a hold before its time."),
    "rehearse-rollback": (
        "upcycle.cli.rehearsal:rehearse_rollback",
        "Show that the version before head can be served; head stays.",
    ),
}
DEAD_LETTER_COMMANDS = {
    "list": ("upcycle.cli.bus:list_dead", "The newest that are not handled."),
    "show": ("upcycle.cli.bus:show_dead", "One of them: who gave it up and why, and the message."),
    "replay": ("upcycle.cli.bus:replay_dead", "Have the reader that gave them up handle them again."),
    "accept": ("upcycle.cli.bus:accept_dead", "Handle them without a replay: what is lost stays lost."),
}
REWARD_MODEL_COMMANDS = {
    "train": (
        "upcycle.cli.reward_model:train",
        "Train an outcome reward model on graded trajectories, for `eval --best-of`.",
    )
}
KEY_COMMANDS = {
    "create": ("upcycle.cli.keys:create", "Make a key of a user or an operator; it is shown once."),
    "list": ("upcycle.cli.keys:list_keys", "What was made, for whom, until when, used when."),
    "revoke": ("upcycle.cli.keys:revoke", "End a key, everywhere within five seconds, for good."),
}
BUS_COMMANDS = {"keys": ("upcycle.cli.bus:make_keys", "Make a key of NATS for each service.")}
STORE_COMMANDS = {"keys": ("upcycle.cli.store:make_keys", "Make a key of the object store for each service.")}
SIGNING_COMMANDS = {
    "keys": ("upcycle.cli.signing:make_keys", "Make a key for each writer of versions and states."),
    "sign": ("upcycle.cli.signing:sign", "What no trusted key has signed; --apply signs it."),
}
STATES_COMMANDS = {
    "convert": (
        "upcycle.cli.states:convert",
        "Training states of an earlier release; --apply makes them readable.",
    )
}
SYNC_COMMANDS = {
    "tasks": ("upcycle.cli.sync:sync_tasks", "Register the tasks of a file under a name, or what changed.")
}
CONFIG_COMMANDS = {
    "show": ("upcycle.cli.config:show", "Every setting; --sources says where each value comes from.")
}
BASELINE_COMMANDS = {
    "record": ("upcycle.cli.baseline:record", "You play tasks; your scores are added to a calibration."),
    "show": ("upcycle.cli.baseline:show", "Who played what, beside the scripted players."),
}
DOCS_COMMANDS = {
    "mcp": ("upcycle.cli.docs:mcp", "Serve the documentation to a coding agent, as an MCP server on stdio.")
}
GROUPS = {
    "tasksets": ("What is played.", TASKSET_COMMANDS),
    "sync": ("What a file has, on the platform too.", SYNC_COMMANDS),
    "trajectories": ("What was sampled.", TRAJECTORY_COMMANDS),
    "models": ("Models, checkpoints, heads.", MODEL_COMMANDS),
    "reward-model": ("What judges an episode without its grade.", REWARD_MODEL_COMMANDS),
    "keys": ("Keys of users and operators.", KEY_COMMANDS),
    "store": ("The object store.", STORE_COMMANDS),
    "signing": ("Signatures of versions and training states.", SIGNING_COMMANDS),
    "states": ("Training states of runs and of interactive training.", STATES_COMMANDS),
    "baseline": ("What people earn on a benchmark.", BASELINE_COMMANDS),
    "config": ("Your settings: environment, upcycle.toml, profile, defaults.", CONFIG_COMMANDS),
    "docs": ("This documentation.", DOCS_COMMANDS),
}
BUS_GROUP = "bus"


_LISTS: Final = "plaintext"
"""How the texts of `upcycle --help` and of groups are written: each is one line."""
_DOCSTRINGS: Final = "markdown"


def build_app() -> cyclopts.App:
    """The command tree; importing no command."""
    app = cyclopts.App(
        name="upcycle", help=PURPOSE, help_epilogue=TABLE, version=_version, help_format=_LISTS
    )
    _add(app, COMMANDS)
    for name, (help_text, commands) in GROUPS.items():
        group = cyclopts.App(name=name, help=help_text)
        _add(group, commands)
        app.command(group)
    bus = cyclopts.App(name=BUS_GROUP, help="The message bus.")
    dead = cyclopts.App(name="dead", help="Messages that their reader gave up or lost, each with its reason.")
    _add(dead, DEAD_LETTER_COMMANDS)
    _add(bus, BUS_COMMANDS)
    bus.command(dead)
    app.command(bus)
    return app


def explain(command: cyclopts.App) -> None:
    """Its help is the whole docstring, and those of its commands, which are imported; lists keep the line."""
    if command.default_command is not None:
        command.help = inspect.getdoc(command.default_command) or command.help
        return
    for name in command:
        if name not in (*command.help_flags, *command.version_flags):
            explain(command[name])


def _version() -> str:
    from importlib.metadata import version

    return version("upcycle")


def _add(app: cyclopts.App, commands: dict[str, tuple[str, str]]) -> None:
    for name, (target, help_text) in commands.items():
        app.command(target, name=name, help=help_text, help_format=_DOCSTRINGS)


def run(arguments: Sequence[str]) -> int:
    """Parse and run; the exit status."""
    app = build_app()
    try:
        for asked in app.parse_commands(list(arguments))[1]:
            if inspect.isfunction(asked.default_command):  # `--help` is one of a method
                explain(asked)
        command, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False)
    except cyclopts.CycloptsError as error:
        from upcycle.cli.command_lines import misread

        return refuse(misread(error))
    try:
        result = command(*bound.args, **bound.kwargs)
        status = _awaited(result) if inspect.iscoroutine(result) else result
        sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except SystemExit as error:  # of a library: what an author's code calls is told where it is called
        return _exited(error)
    except BrokenPipeError:  # `… | head` has read all that it wants
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK
    except Exception as error:
        return fail(error)
    return int(status) if isinstance(status, int) else Exit.OK


def _awaited(result: Coroutine[Any, Any, Any]) -> Any:
    import asyncio  # 40 ms that `--help` need not pay

    return asyncio.run(result)


def _exited(error: SystemExit) -> int:
    """No code but this decides the exit status of a command."""
    from upcycle.errors import Failed
    from upcycle.raised import STOP_EXITING, described

    if isinstance(error.__context__, BrokenPipeError):  # rich ends so where `… | head` has read its table
        return Exit.OK
    return fail(Failed(f"the command was ended by {described(error)}", STOP_EXITING))


def main() -> NoReturn:
    """Console script `upcycle`."""
    keep_plain()
    sys.exit(run(sys.argv[1:]))
