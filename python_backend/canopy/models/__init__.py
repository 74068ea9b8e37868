"""Decoder models by configuration, and the step batch that they compute."""
