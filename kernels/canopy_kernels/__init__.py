"""Ops of the round: per op one file with its reference, its kernel, its launcher and CPU path."""
