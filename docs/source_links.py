"""An mkdocs hook: a link from a page to a file of the repository leads to the file's text on the site."""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.structure.files import File

ROOT: Final = Path(__file__).parents[1]
_LINK: Final = re.compile(r"\]\((?:\.\./)+((?:tests|services|libs|examples|proto|benchmarks)/[^)#\s]+)\)")


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Publish each linked file as `source/<path>.txt`; a link to a file that is missing stays and fails."""

    def published(match: re.Match[str]) -> str:
        name = f"source/{match[1]}.txt"
        source = ROOT / match[1]
        if not source.is_file():
            return match[0]
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, content=source.read_text(encoding="utf-8")))
        return f"]({posixpath.relpath(name, posixpath.dirname(page.file.src_uri))})"

    return _LINK.sub(published, markdown)
