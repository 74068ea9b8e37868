"""The Triton server's process: its environment, probes and supervision."""
