"""Lookup: continuations known from the sequence itself and from an n-gram store."""
