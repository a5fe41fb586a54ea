"""Cheap things that can be done to a simulated computer by one who reads no rule: each to everything."""

from collections.abc import Iterator

from upcycle.benchmarks.autonomy_10.machine.state import HOME, Computer
from upcycle.benchmarks.autonomy_10.problems import (
    Calls,
    ComputerProblem,
    click,
    mailed,
    noted,
    opened,
    shell,
    typed,
    written,
)


def cheats_of(problem: ComputerProblem) -> dict[str, Calls]:
    """Calls of tools that should earn next to nothing, by what they do."""
    machine = problem.machine
    return {
        "nothing": (),
        "apps opened": tuple(("open_app", {"name": one}) for one in ("mail", "tables", "notes", "settings")),
        "an echo of the prompt": (
            *noted("Answer", problem.text),
            *mailed("boss@ours.com", "Answer", problem.text),
            written(f"{HOME}/answer.txt", problem.text),
        ),
        "sheer length": (*noted("Answer", "It is done. " * 500), shell("ls -l; " * 200)),
        "a note of everything": noted(
            "Everything", "\n".join([*machine.pages.values(), *machine.notes.values()])
        ),
        **dict(_of_files(machine)),
        **dict(_of_office(machine)),
        **dict(_of_tables(machine)),
        **dict(_of_background(machine)),
    }


def _of_files(machine: Computer) -> Iterator[tuple[str, Calls]]:
    given = [path for path, file in machine.files.items() if file.text is not None]
    folders = sorted({path.rpartition("/")[0] for path in given})
    yield "every file removed", tuple(shell(f"rm -rf {folder}/*") for folder in folders)
    yield "every file emptied", tuple(shell(f"echo -n > {path}") for path in given)
    if given:
        everything = " ".join(given)
        yield "every file in one folder", (shell(f"mkdir {HOME}/all; mv {everything} {HOME}/all"),)
        for mode in ("600", "777"):
            yield f"every mode {mode}", (shell(f"chmod {mode} {everything}"),)
        for owner in {file.owner for file in machine.files.values()}:
            yield f"every file of {owner}", (shell(f"chown -R {owner} {everything}"),)


def _of_office(machine: Computer) -> Iterator[tuple[str, Calls]]:
    inbox = [(name, mail.folder) for name, mail in machine.mails.items()]
    for to in machine.mail_folders:
        moves = [opened("mail", f"folder:{at}", name, f"move:{to}") for name, at in inbox if at != to]
        yield f"every message to {to}", tuple(call for one in moves for call in one)
        flags = [
            (*opened("mail", f"folder:{at}", name, "flag"), *([click(f"move:{to}")] if to != at else []))
            for name, at in inbox
        ]
        yield f"every message flagged, to {to}", tuple(call for one in flags for call in one)
    yield (
        "every event deleted",
        tuple(
            call
            for name, event in machine.events.items()
            for call in opened("calendar", f"calendar:{event.calendar}", name, "delete")
        ),
    )
    for at, of_all in (("first", 0), ("last", -1)):
        yield (
            f"every setting at its {at} choice",
            tuple(
                call
                for name, one in machine.settings.items()
                for call in (
                    *opened("settings", f"section:{name.partition('.')[0]}"),
                    typed(name, one.choices[of_all] if one.choices else "1"),
                )
            ),
        )


def _of_tables(machine: Computer) -> Iterator[tuple[str, Calls]]:
    for name, table in machine.tables.items():
        for at, column in enumerate(table.columns):
            for value in sorted({row[at] for row in table.rows} | {"yes", "0", "approved"})[:6]:
                yield (
                    f"every {column} of {name} {value}",
                    tuple(
                        call
                        for number in range(1, len(table.rows) + 1)
                        for call in (
                            *opened("tables", f"table:{name}", f"row:{number}"),
                            typed(f"cell:{column}", value),
                        )
                    ),
                )
        deleted = tuple(
            call for _ in table.rows for call in opened("tables", f"table:{name}", "row:1", "delete")
        )
        yield f"every row of {name} deleted", deleted


def _of_background(machine: Computer) -> Iterator[tuple[str, Calls]]:
    yield "every service started again", tuple(shell(f"systemctl restart {one}") for one in machine.services)
    yield "every service stopped", tuple(shell(f"systemctl stop {one}") for one in machine.services)
    yield "every process killed", (shell(f"kill {' '.join(machine.processes)}"),)
    yield (
        "every package published",
        tuple(shell(f"pkg {verb} {one}") for one in machine.packages for verb in ("build", "publish")),
    )
    yield "every package held", tuple(shell(f"pkg hold {one}") for one in machine.packages)
    yield "every account locked", tuple(shell(f"passwd -l {one}") for one in machine.users)
    yield "every account removed", (shell(f"userdel -r {' '.join(machine.users)}"),)
    groups = ",".join(machine.groups)
    yield "every account in every group", tuple(shell(f"usermod -G {groups} {one}") for one in machine.users)
    yield "every account in no group", tuple(shell(f"usermod -rG {groups} {one}") for one in machine.users)
    yield "every timed job removed", tuple(shell(f"crontab -u {one} -r") for one in machine.cron)
