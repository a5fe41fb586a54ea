"""What the gateway decides with: values, errors and pure functions; no I/O."""
