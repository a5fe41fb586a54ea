"""What is graded of a machine: things with their attributes. What is looked at or drafted is none."""

from collections.abc import Iterator

from .state import Computer, File

Attributes = dict[str, str]
Facts = dict[str, Attributes]
"""Attributes by thing, such as "file:/tmp/a" or "mail:m03". Created things are named by what they say, not by
a number, so that the order in which they were made does not matter; a second one of a name gets `#2`."""


def facts_of(machine: Computer) -> Facts:
    """Every thing of the machine."""
    found: Facts = {}
    for thing, attributes in (
        *_documents(machine),
        *_office(machine),
        *_background(machine),
        *_accounts(machine),
    ):
        name, number = thing, 1
        while name in found:
            number += 1
            name = f"{thing}#{number}"
        found[name] = attributes
    return found


def _documents(machine: Computer) -> Iterator[tuple[str, Attributes]]:
    for path, file in machine.files.items():
        yield f"file:{path}", _file(file)
    for name, table in machine.tables.items():
        for row in table.rows:
            yield f"row:{name}/{row[0]}", dict(zip(table.columns, row, strict=True))
    for title, text in machine.notes.items():
        yield f"note:{title}", {"text": text}


def _file(file: File) -> Attributes:
    if file.text is None:
        return {"is": "folder", "mode": file.mode, "owner": file.owner}
    return {"text": file.text, "mode": file.mode, "owner": file.owner}


def _office(machine: Computer) -> Iterator[tuple[str, Attributes]]:
    for name, mail in machine.mails.items():
        yield f"mail:{name}", {"folder": mail.folder, "flagged": _yes(mail.flagged)}
    for mail in machine.sent:
        yield f"sent:{_flat(mail.to)}/{_flat(mail.subject)}", {"body": mail.body}
    for event in machine.events.values():
        guests = ", ".join(sorted(one for one in map(_flat, event.guests.split(",")) if one))
        when = f"{event.day} {event.start}-{event.end}"
        yield f"event:{event.calendar}/{_flat(event.title)}", {"when": when, "guests": guests}
    for name, setting in machine.settings.items():
        yield f"setting:{name}", {"value": setting.value}


def _background(machine: Computer) -> Iterator[tuple[str, Attributes]]:
    for name, service in machine.services.items():
        enabled = _yes(service.is_enabled)
        yield f"service:{name}", {"state": service.state, "enabled": enabled, "loaded": service.loaded}
    for pid, process in machine.processes.items():
        if not process.service:
            yield f"process:{pid}", {"command": process.command}
    for name, package in machine.packages.items():
        yield f"package:{name}", {"published": package.published, "held": _yes(package.is_held)}


def _accounts(machine: Computer) -> Iterator[tuple[str, Attributes]]:
    for name, user in machine.users.items():
        yield f"user:{name}", {"full_name": user.full_name, "locked": _yes(user.is_locked)}
        for group in user.groups:
            yield f"member:{group}/{name}", {}
    for name, lines in machine.cron.items():
        for line in lines:
            yield f"cron:{name}/{line}", {}


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _flat(text: str) -> str:
    return " ".join(text.split()).casefold()
