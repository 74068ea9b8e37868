"""Tree attention over a paged KV cache, and the writes and moves of that cache."""
