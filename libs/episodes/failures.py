"""The error of an episode that can have no reward."""


class EpisodeBroken(Exception):
    """This episode cannot be played or graded. `kind` travels in `episode.failed`: an EpisodeFailure, or the
    word that the environment sent."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind = kind
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"
