"""The corpus: the target's own answers."""
