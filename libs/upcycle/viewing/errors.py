"""What `upcycle view` refuses, by name."""

from upcycle.errors import UpcycleError


class TooManyEpisodes(UpcycleError, ValueError):
    """More episodes are to be shown whole than a page can hold, or fewer than none."""

    kind = "too_many_episodes"


class CannotWrite(UpcycleError, ValueError):
    """The place of a page is no file in a folder that exists."""

    kind = "cannot_write"
