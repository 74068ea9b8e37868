"""Structured output: grammars, and the masks that they put on the tokens of a tree."""
