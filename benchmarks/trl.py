"""The peer TRL in an environment of its own, driven by programs in peers/."""

from typing import Final

from benchmarks.peer_environment import PeerEnvironment
from benchmarks.stacks import REPOSITORY

VERSION: Final = "1.16"
_LOCK: Final = (REPOSITORY / "requirements" / "torch.txt").read_text()
_TORCH: Final = next(line.split()[0] for line in _LOCK.splitlines() if line.startswith("torch=="))
_TRL: Final = PeerEnvironment(
    "trl",
    VERSION,
    # On our torch and transformers: what is compared is the trainer.
    requirements=(_TORCH, f"trl=={VERSION}.*", "transformers>=5.20,<6"),
    variables={
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(REPOSITORY),  # the repository's examples
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    },
    run_s=3600.0,
)
prepare, output = _TRL.prepare, _TRL.output
