"""What can go wrong between messages and tokens; one class per reaction."""


class ChatFormatError(ValueError):
    """Base of this package's errors."""


class InvalidModelDir(ChatFormatError):
    """The directory lacks a file, or a file cannot be used: fix the policy, it renders nothing."""


class InvalidMessages(ChatFormatError):
    """The conversation cannot be rendered by this template: the caller must change it."""
