"""Mail: folders, messages, a form to write one."""

from functools import partial

from ..errors import ActionRefused
from ..machine.state import Computer, Mail
from .page import Page, go

MAX_SENT = 200


def mail_page(machine: Computer) -> Page:
    """The place that the screen is at: folders, one folder, one message, or a new message."""
    match machine.screen.place:
        case ["folder", name]:
            return _folder(machine, name)
        case ["mail", name]:
            return _message(machine, name)
        case ["new", to, subject]:
            return _new(machine, to, subject)
    page = Page("Mail")
    for name in machine.mail_folders:
        held = sum(mail.folder == name for mail in machine.mails.values())
        page.button(f"folder:{name}", f"{held} messages", go(machine, "folder", name))
    page.button("new", "write a message", go(machine, "new", "", ""))
    return page


def _folder(machine: Computer, folder: str) -> Page:
    page = Page(f"Mail: {folder}")
    for name, mail in machine.mails.items():
        if mail.folder == folder:
            flag = " (flagged)" if mail.flagged else ""
            label = f"{mail.day} {mail.sender}: {mail.subject}{flag}"
            page.button(name, label, go(machine, "mail", name))
    page.button("back", "all folders", go(machine))
    return page


def _message(machine: Computer, name: str) -> Page:
    mail = machine.mails[name]
    page = Page(f"Mail: {mail.subject}")
    page.text = [
        f"From: {mail.sender}",
        f"To: {mail.to}",
        f"Date: {mail.day}",
        f"Folder: {mail.folder}",
        mail.body,
    ]

    def move(folder: str) -> None:
        mail.folder = folder

    def flag() -> None:
        mail.flagged = not mail.flagged

    for folder in machine.mail_folders:
        if folder != mail.folder:
            page.button(f"move:{folder}", "move there", partial(move, folder))
    page.button("flag", "take the flag off" if mail.flagged else "flag", flag)
    page.button("reply", "answer it", go(machine, "new", mail.sender, f"Re: {mail.subject}"))
    page.button("back", f"to {mail.folder}", go(machine, "folder", mail.folder))
    return page


def _new(machine: Computer, to: str, subject: str) -> Page:
    page = Page("Mail: new message")
    screen = machine.screen
    fields = {
        "to": page.draft(screen, "to", "To", to),
        "subject": page.draft(screen, "subject", "Subject", subject),
        "body": page.draft(screen, "body", "Text"),
    }

    def send() -> None:
        for name, value in fields.items():
            if not value.strip():
                raise ActionRefused(f"the field {name} is empty", f"type_text writes to [{name}]")
        if len(machine.sent) >= MAX_SENT:
            raise ActionRefused(f"{MAX_SENT} messages were sent", "no more are")
        machine.sent.append(Mail("ana", fields["to"], fields["subject"], fields["body"], folder="Sent"))
        go(machine)()

    page.button("send", "send it", send)
    page.button("back", "leave it", go(machine))
    return page
