"""The ten kinds of work."""

from typing import Final

from ..problems import Category
from .accounts import ACCOUNTS
from .calendar import CALENDAR
from .entry import ENTRY
from .expenses import EXPENSES
from .files import FILES
from .incident import INCIDENT
from .logs import LOGS
from .mail import MAIL
from .release import RELEASE
from .settings import SETTINGS

CATEGORIES: Final[tuple[Category, ...]] = (
    FILES,
    MAIL,
    CALENDAR,
    EXPENSES,
    INCIDENT,
    ACCOUNTS,
    LOGS,
    RELEASE,
    ENTRY,
    SETTINGS,
)
