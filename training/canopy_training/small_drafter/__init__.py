"""Training of small autoregressive drafters."""
