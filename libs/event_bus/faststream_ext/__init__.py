"""What FastStream has no extension point for: see docs/adr/0001-faststream.md."""
