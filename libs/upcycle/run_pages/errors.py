"""Why there is no page."""

from upcycle.errors import UpcycleError


class PageTooLarge(UpcycleError, ValueError):
    """The page would be larger than browsers open without a pause."""

    kind = "page_too_large"
