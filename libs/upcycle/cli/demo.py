"""`upcycle demo`."""

import json
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, human, print_json
from upcycle.cli.platform_needed import require_platform
from upcycle.wording import amount

if TYPE_CHECKING:
    from local_demo.loop import Demo
    from local_demo.report import DemoReport


async def demo(
    *,
    engine: Literal["embedded", "vllm-cpu"] = "embedded",
    seed: int | None = None,
    data_dir: Path = Path(".upcycle/demo"),
    stay: bool | None = None,
    as_json: JsonFlag = False,
) -> int:
    """Start everything, train the incident agent, promote what passes its gate, serve it, judge the result.

    :param engine: `embedded` needs nothing; `vllm-cpu` needs `make vllm-cpu` first.
    :param seed: of tasks and sampling; drawn anew each time unless given.
    :param data_dir: emptied first; holds databases, weights, logs and report.json.
    :param stay: leave the platform running afterwards until Ctrl-C; default when a person watches.
    :param as_json: print the report as one JSON line too.
    """
    require_platform("demo")
    from local_demo.loop import Demo
    from local_demo.plan import DemoPlan, find_repository, load_recipe
    from local_stack.data_folder import keep_private

    keep_private()
    repository = find_repository()
    plan = DemoPlan(
        engine=engine,
        data_dir=data_dir.absolute(),
        repository=repository,
        seed=secrets.randbelow(1 << 31) if seed is None else seed,
        stay=sys.stdin.isatty() and sys.stderr.isatty() if stay is None else stay,
        recipe=load_recipe(repository),
    )
    async with Demo(plan, human()) as running:
        status = _concluded(await running.run(), running, as_json)
        if plan.stay:
            human().print("\nThe platform is running. Ctrl-C stops it.")
            await running.stack.failed()
    return status


def _concluded(report: "DemoReport", running: "Demo", as_json: bool) -> int:
    """The report in its file, as one JSON line where that was asked for, and in words; the exit status."""
    (running.plan.data_dir / "report.json").write_text(json.dumps(report.to_json(), indent=2) + "\n")
    if as_json:
        print_json("demo", report.to_json())
    return conclude(report, running)


def conclude(report: "DemoReport", running: "Demo") -> int:
    """The numbers, the verdict, and what to try next."""
    out = human()
    before, after, gain = report.audit.before, report.audit.after, report.audit
    out.print(f"\n[bold]audit  success {before.rate:.1%} → {after.rate:.1%}[/bold]", end="")
    out.print(f"   95 % intervals {_percent(before.ci95)} → {_percent(after.ci95)}")
    out.print(f"            paired gain {gain.gain:+.1%} {_percent(gain.gain_ci95)}")
    out.print(f"gate        {_selected(report)}")
    out.print(f"watch       {_watched(report)}", soft_wrap=True)
    ledger = report.ledger
    out.print(
        f"ledger      {ledger.requested} requested = {ledger.settled} settled + {ledger.in_flight} in flight"
    )
    out.print(
        f"            {', '.join(f'{state} {count}' for state, count in sorted(ledger.by_state.items()))}"
    )
    out.print(f"evaluations {_fed(report)}", soft_wrap=True)
    out.print(
        f"versions    {report.policy_versions} published, {report.checkpoints_saved} checkpoints: "
        f"{report.checkpoints_promoted} promoted, {report.checkpoints_held} held"
    )
    latency = report.reloads.to_json()["promoted_to_first_token_ms"]
    out.print(
        f"reloads     {report.reloads.count}, {report.reloads.failed} failed; "
        f"promotion to first token {latency} ms"
    )
    out.print(
        f"serving     {report.served.model} v{report.served.version} {report.served.digest[:12]}; "
        f"{report.production_requests} production requests, {report.production_failures} failed"
    )
    out.print(f"wall clock  {_walls(report)}")
    out.print(f"usage       {report.usage}")
    for name, part in report.parts.items():
        out.print(f"            {name}: {amount(part.episodes, 'episode')}, {part.usage}", soft_wrap=True)
    out.print(f"report      {running.plan.data_dir / 'report.json'}")
    _say_next(running)
    return _verdict(report)


def _verdict(report: "DemoReport") -> int:
    out, shortfalls = human(), report.shortfalls()
    for line in shortfalls:
        out.print(f"[red]✗ {line}[/red]")
    out.print("[green]✓ the loop closed[/green]" if not shortfalls else "[red]the loop did not close[/red]")
    return Exit.FAILED if shortfalls else Exit.OK


def _say_next(running: "Demo") -> None:
    """Commands that work when they are read."""
    out = human()
    out.print("\n[bold]next[/bold]")
    lines = running.next_commands()
    if not running.plan.stay:
        out.print("  the platform is stopped now (--stay leaves it running); start it again, and then")
        lines = [running.start_again(), *lines]
    for line in lines:
        out.print(f"  {line}", soft_wrap=True, markup=False)


def _fed(report: "DemoReport") -> str:
    groups = ", ".join(f"{count} groups of {run_id}" for run_id, count in report.fed.groups.items())
    sampled = report.fed.sampled_before_first_step
    return f"{groups} trained; {sampled} episodes sampled for training before the first step"


def _selected(report: "DemoReport") -> str:
    gate = report.gate
    if gate is None:
        return "(selecting) promoted nothing"
    return (
        f"(selecting) {gate.head_rate:.1%} → {gate.candidate_rate:.1%} when v{gate.version} was promoted, "
        f"{gate.attempts} attempts a side"
    )


def _watched(report: "DemoReport") -> str:
    watched = report.watched
    if watched is None:
        return "no head was promoted, so none was watched"
    ended = f"it went back: {watched.rolled_back}" if watched.rolled_back else "it stays head"
    pairs = amount(watched.pairs, "pair")
    return f"head v{watched.version} over {pairs} with the version before it: {ended}"


def _walls(report: "DemoReport") -> str:
    walls = report.wall_s
    return (
        f"setup {walls.setup:.0f} s, baseline {walls.baseline:.0f} s, training and gate "
        f"{walls.training:.0f} s, audit {walls.audit:.0f} s, then the watch {walls.watch:.0f} s"
    )


def _percent(interval: tuple[float, float]) -> str:
    return f"[{interval[0]:.1%}, {interval[1]:.1%}]"
