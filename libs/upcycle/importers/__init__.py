"""What others have, as tasks and environments of this SDK."""
