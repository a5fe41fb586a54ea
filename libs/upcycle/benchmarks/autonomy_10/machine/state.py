"""The state of the simulated computer. All of it is plain data that is JSON as it stands."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

HOME: Final = "/home/ana"
TODAY: Final = "2026-03-02"


@dataclass(slots=True)
class File:
    """text: None for a folder. mode: octal. day: of its last change, given ones only."""

    text: str | None
    mode: str = "644"
    owner: str = "ana"
    day: str = TODAY


@dataclass(slots=True)
class Mail:
    """A message, received or sent."""

    sender: str
    to: str
    subject: str
    body: str
    day: str = TODAY
    folder: str = "Inbox"
    flagged: bool = False


@dataclass(slots=True)
class Event:
    """An entry of one person's calendar. start, end: as 09:30. guests: names, separated by commas."""

    calendar: str
    title: str
    day: str
    start: str
    end: str
    guests: str = ""


@dataclass(slots=True)
class StoredTable:
    """A sheet of text cells. The first column names the row."""

    columns: list[str]
    rows: list[list[str]]


@dataclass(slots=True)
class Setting:
    """One setting of the machine. choices: what it may be; empty for any text."""

    value: str
    choices: list[str] = field(default_factory=list)
    is_managed: bool = False


@dataclass(slots=True)
class Service:
    """A program that runs in the background. keys: those that its configuration has to have, and no others.
    needs: services that have to run before it. loaded: the configuration with which it was started."""

    config: str
    keys: list[str]
    user: str
    needs: list[str] = field(default_factory=list)
    state: str = "running"
    is_enabled: bool = True
    loaded: str = ""


@dataclass(slots=True)
class Process:
    """service: the name of the service that it belongs to, if any."""

    user: str
    command: str
    port: str = ""
    service: str = ""


@dataclass(slots=True)
class Package:
    """folder: holds VERSION and NEEDS. built, published: versions, "" for none."""

    folder: str
    built: str = ""
    published: str = ""
    is_held: bool = False


@dataclass(slots=True)
class User:
    """An account."""

    full_name: str
    groups: list[str]
    is_locked: bool = False


@dataclass(slots=True)
class Screen:
    """What the desktop shows. place: where in the app. drafts: what was typed and not saved."""

    app: str = ""
    place: list[str] = field(default_factory=list)
    drafts: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Computer:
    """All of it. folder: the one that the shell is in. pages: of the intranet, by their path."""

    folder: str = HOME
    files: dict[str, File] = field(default_factory=dict)
    mails: dict[str, Mail] = field(default_factory=dict)
    mail_folders: list[str] = field(default_factory=lambda: ["Inbox", "Archive"])
    sent: list[Mail] = field(default_factory=list)
    events: dict[str, Event] = field(default_factory=dict)
    tables: dict[str, StoredTable] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)
    pages: dict[str, str] = field(default_factory=dict)
    services: dict[str, Service] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    packages: dict[str, Package] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    cron: dict[str, list[str]] = field(default_factory=dict)
    screen: Screen = field(default_factory=Screen)

    def __post_init__(self) -> None:
        for folder in ("/", "/tmp", HOME):  # noqa: S108 - of the simulated machine
            self.put(folder, None)

    def put(
        self, path: str, text: str | None, *, mode: str = "", owner: str = "ana", day: str = TODAY
    ) -> None:
        """Give the machine a file, or a folder, with the folders above it."""
        parts = path.strip("/").split("/")
        for depth in range(1, len(parts)):
            self.files.setdefault("/" + "/".join(parts[:depth]), File(None, "755", owner, day))
        self.files[path] = File(text, mode or ("755" if text is None else "644"), owner, day)

    def receive(self, mail: Mail) -> str:
        """Put a message into its folder; its id."""
        name = f"m{len(self.mails) + 1:02d}"
        self.mails[name] = mail
        return name

    def as_json(self) -> dict[str, Any]:
        """The whole state."""
        return asdict(self)
