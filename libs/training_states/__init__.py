"""Files of a training state: tensors in safetensors with an index in JSON, and what converts older ones.

Importing this package imports no torch; its modules do.
"""

from training_states.converted import CONVERT, ConvertedState, are_pickled
from training_states.errors import InvalidStateFiles

__all__ = ["CONVERT", "ConvertedState", "InvalidStateFiles", "are_pickled"]
