"""What can go wrong with a training session, one class per reaction."""


class TrainerError(Exception):
    """Base of the errors that this service raises on purpose; each text names the thing, its value, the
    limit and the way out.
    """


class UnusableTrajectory(TrainerError):
    """The stored body cannot be trained on and never will be; its group is quarantined."""


class Untrainable(UnusableTrajectory):
    """The stored body is sound, and nothing in it can train: it was sampled greedily, all of it is
    masked, or it holds text alone."""


class InvalidTrainingSpec(TrainerError):
    """The run asks for something that this trainer cannot do; the session fails before it begins."""


class UnknownSession(TrainerError):
    """No training session has that run id."""


class LineageTaken(TrainerError):
    """Another trainer has already written the next state of this run; this one must stop writing."""


class BrokenArtifact(TrainerError):
    """Something stored is not what it must be: a base policy, a training state. A person must act."""


class OldState(TrainerError):
    """A training state is in files of an earlier release, which this one does not open. An operator converts
    it, and then it is gone on with."""


class Superseded(TrainerError):
    """The planner ended the run without waiting longer for this step: the step is void and not announced."""


class Diverged(TrainerError):
    """Loss or gradient is not finite; the batch was not applied."""


class OutOfMemory(TrainerError):
    """The model, or one row of a batch, does not fit in this machine's memory; the weights were not
    touched."""


class KilledInBatch(TrainerError):
    """The process ended while it computed this batch, again and again, and was not asked to."""


class Unpublishable(TrainerError):
    """The bus can never store this event: no subject can be made of the model's name, or it is too large."""


class InvalidInput(TrainerError):
    """An interactive request names or holds something that cannot be trained on as it stands."""


class PartialGroup(InvalidInput):
    """The inputs are not whole groups: advantages would be relative to the wrong rollouts."""


class HeldOutInput(InvalidInput):
    """The trajectory is of a held-out task, which must never train."""


class RequestIdReused(InvalidInput):
    """The request id belongs to another request: one of the two would be lost."""


class UnknownModel(TrainerError):
    """The registry knows no model of that name."""


class UnknownTrajectory(TrainerError):
    """The store holds no trajectory of that id, or nothing that can be trained."""


class UnknownForward(TrainerError):
    """No forward pass of that id is kept: its weights are gone, or the trainer was restarted."""


class StaleForward(TrainerError):
    """The weights changed since the forward pass, so its gradients belong to another policy."""


class NothingAccumulated(TrainerError):
    """An optimizer step without a gradient."""


class LostGradients(TrainerError):
    """Gradients that the caller counts on are not accumulated any more."""


class LostSteps(TrainerError):
    """Optimizer steps that were not saved are gone with the process that held them; training goes on from the
    last saved one. Said once for each loss."""


class HeadMoved(TrainerError):
    """Head was set elsewhere while gradients were accumulated; they were dropped."""


class ModelBusy(TrainerError):
    """A run trains this model, and one model has one line of versions."""


class LostRank(TrainerError):
    """A process that shares every step died or is late; what is left is not a model. Only a new start
    helps."""


class RanksGone(LostRank):
    """A rank was lost before: nothing was computed for this call."""
