"""What the registry decides with: values, errors and pure functions; no I/O."""
