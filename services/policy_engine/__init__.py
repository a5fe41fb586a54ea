"""An engine supervisor beside each engine process."""
