"""Linears and norms whose result for a row does not depend on the batch."""
