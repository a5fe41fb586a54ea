"""`upcycle why RUN`."""

from upcycle.cli.exits import Exit
from upcycle.cli.output import JsonFlag, print_json, result_console
from upcycle.platform import Platform
from upcycle.wording import amount


async def why(run: str = "last", *, as_json: JsonFlag = False) -> int:
    """What is RUN waiting for, who owns it, and what to do.

    :param run: id of the run; `last` is the newest.
    :param as_json: print one JSON line instead of text.
    """
    from upcycle.api.taskset.v1.service_pb2 import ExplainRunRequest
    from upcycle.cli.runs import refuse_local_run, resolve_run

    refuse_local_run(run)
    async with Platform() as platform:
        run_id = await resolve_run(platform, run)
        answer = await platform.tasksets.ExplainRun(ExplainRunRequest(run_id=run_id), timeout=5)
    if as_json:
        print_json("why", answer)
        return Exit.OK
    from rich.text import Text  # what services say is text, never markup

    out = result_console()
    out.print(Text.assemble((run_id, "bold"), f"  {answer.summary}"), soft_wrap=True)
    for reason in answer.waiting_for:
        out.print(Text.assemble("  ", (reason.owner, "yellow"), f": {reason.what}"), soft_wrap=True)
        many = f"{amount(reason.episodes, 'episode')}, longest {reason.waiting_s:.1f} s "
        out.print(Text(f"      {many if reason.episodes else ''}→ {reason.remedy}"), soft_wrap=True)
    return Exit.OK
