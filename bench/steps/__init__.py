"""Times of the target's forward pass."""
