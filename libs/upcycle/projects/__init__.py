"""New projects: what `upcycle init` writes. The templates are files of this package, linted and tested."""
