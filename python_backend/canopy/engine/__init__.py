"""The engine: sequences, the loop that serves them, and its metrics."""
