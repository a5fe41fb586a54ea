"""What the engine refuses; the HTTP edge turns each class into one status of vLLM's error envelope."""


class EngineFault(Exception):
    """Base of this package's errors."""


class UnsupportedModel(EngineFault, ValueError):
    """The directory holds no model that this engine can run: it runs Qwen3, Qwen2 and Llama on a CPU."""


class BadWeights(EngineFault, ValueError):
    """The weights of a directory do not fit: tensors missing, of other shapes, or not finite."""


class BadRequest(EngineFault):
    """The caller has to change the request; `param` names the field.

    Not a ValueError: pydantic would catch it and replace its text.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownModel(EngineFault, LookupError):
    """No policy is served under that name."""


class NameTaken(EngineFault, ValueError):
    """Another policy is served under that name."""


class EngineDead(EngineFault, RuntimeError):
    """The decode loop died; every request fails until the process is started again."""
