"""The public side of the pipeline: what a client may send, what it gets, what is measured."""
