"""How much of what is drafted the target accepts."""
