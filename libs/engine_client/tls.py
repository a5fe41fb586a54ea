"""Whom a client of engines trusts: the authority of the deployment, read again when its files change."""

import logging
import ssl
from typing import Final

from engine_client.errors import EngineUnavailable
from upcycle.tls import ClientTls, Stamp, TlsFilesUnusable, current, load_pair, stamp_of

log = logging.getLogger(__name__)

_HTTPS: Final = "https://"


class EngineTls:
    """TLS to engines as `upcycle.tls.current` says; where it says nothing, as this machine trusts others."""

    def __init__(self, *, only_https: bool = False) -> None:
        """only_https: no engine is spoken to in the clear, whatever a lease says (UPCYCLE_TLS_ENGINES)."""
        self._only_https = only_https
        self._made: tuple[ClientTls | None, Stamp, ssl.SSLContext] | None = None
        self._said = ""

    def context_for(self, base_url: str) -> ssl.SSLContext | None:
        """For a connection that begins now; None: in the clear. Raises EngineUnavailable."""
        if not base_url.startswith(_HTTPS):
            if self._only_https:
                raise EngineUnavailable(
                    f"engine {base_url} speaks no https, and UPCYCLE_TLS_ENGINES is true here: start its "
                    "supervisor with UPCYCLE_TLS_ENGINES=true and a certificate"
                )
            return None
        tls = current()
        made = self._made
        try:
            stamp = stamp_of(() if tls is None else tls.files)
            if made is None or made[:2] != (tls, stamp):
                made = self._made = (tls, stamp, _context(tls))
        except TlsFilesUnusable as error:
            if made is None or made[0] != tls:
                raise EngineUnavailable(f"engine {base_url} cannot be trusted: {error}") from error
            if str(error) != self._said:  # once, and not with each request
                self._said = str(error)
                log.warning("tls_files_unusable", extra={"error": self._said})
        else:
            self._said = ""
        return made[2]


def _context(tls: ClientTls | None) -> ssl.SSLContext:
    if tls is None:
        return ssl.create_default_context()
    try:
        context = ssl.create_default_context(cafile=str(tls.ca))
    except (OSError, ssl.SSLError) as error:
        raise TlsFilesUnusable(f"{tls.ca} holds no certificates, or not all of one: {error}") from error
    if tls.certificate is not None and tls.key is not None:
        load_pair(context, tls.certificate, tls.key)
    return context
