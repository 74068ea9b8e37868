"""Training and export of block drafters."""
