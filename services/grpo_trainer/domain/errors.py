"""What can go wrong with a training session, one class per reaction."""


class TrainerError(Exception):
    """Base of what this service raises on purpose; the text says thing, value, limit and way out."""


class UnusableTrajectory(TrainerError):
    """The stored body cannot be trained on and never will be; its group is quarantined."""


class InvalidTrainingSpec(TrainerError):
    """The run asks for something that this trainer cannot do; the session fails before it begins."""


class UnknownSession(TrainerError):
    """No training session has that run id."""


class LineageTaken(TrainerError):
    """Another trainer has already written the next state of this run; this one must stop writing."""


class BrokenArtifact(TrainerError):
    """Something stored is not what it must be: a base policy, a training state. Only a person can mend it."""


class Diverged(TrainerError):
    """Loss or gradient is not finite; the batch was not applied."""


class Waiting(TrainerError):
    """Something outside is away for a while; the text names it. The same call may succeed later."""
