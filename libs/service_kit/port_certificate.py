"""The certificate of an HTTP port, read again while it listens."""

import asyncio
import logging
import os
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NoReturn

from upcycle.tls import Stamp, TlsFilesUnusable, check_pair, load_pair, read, read_ca, stamp_of

log = logging.getLogger(__name__)

_REFRESH_S: Final = 10.0


class PortCertificate:
    """A context whose certificate is replaced when its files change; open connections keep theirs."""

    def __init__(
        self,
        certificate: Path,
        key: Path,
        clients_ca: Path | None = None,
        *,
        name: str = "public_certificate",
    ) -> None:
        """clients_ca: callers must show a certificate that one of these signed; what is added to the file
        holds from the next look on, what is taken out from the next start. name: begins what the log says.
        Raises TlsFilesUnusable."""
        self._pair, self._clients_ca, self._name = (certificate, key), clients_ca, name
        self._stamp: Stamp = stamp_of(self._files)
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._load()
        if clients_ca is not None:
            self.context.verify_mode = ssl.CERT_REQUIRED

    @property
    def _files(self) -> tuple[Path, ...]:
        return self._pair if self._clients_ca is None else (*self._pair, self._clients_ca)

    def _load(self) -> None:
        check_pair(*self._pair)
        with _kept(*map(read, self._pair)) as pair:
            check_pair(*pair)  # before the context in use, which would keep the half of a pair
            if self._clients_ca is not None:
                _trust(self.context, self._clients_ca)
            load_pair(self.context, *pair)

    def refresh(self) -> None:
        """Take what the files hold now. A pair that does not fit is logged, and the one before stays."""
        try:
            if (stamp := stamp_of(self._files)) == self._stamp:
                return
            self._load()
        except TlsFilesUnusable as error:
            log.warning(f"{self._name}_unusable", extra={"error": str(error)})
            return
        self._stamp = stamp
        log.info(f"{self._name}_replaced", extra={"file": str(self._pair[0])})

    async def follow(self) -> NoReturn:
        """Refresh until cancelled."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            self.refresh()


@contextmanager
def _kept(*contents: bytes) -> Iterator[list[Path]]:
    """Files in memory, which stay as they are while they are checked and loaded: ssl reads no bytes."""
    with ExitStack() as opened:
        paths = []
        for content in contents:
            file = opened.enter_context(os.fdopen(os.memfd_create("certificate"), "wb"))
            file.write(content)
            file.flush()
            paths.append(Path(f"/proc/self/fd/{file.fileno()}"))
        yield paths


def _trust(context: ssl.SSLContext, ca: Path) -> None:
    """Raises TlsFilesUnusable."""
    text = read_ca(ca).decode("ascii", "ignore")  # ssl takes no other characters, which comments may have
    try:
        context.load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise TlsFilesUnusable(f"{ca} holds no certificates: {error}") from error
