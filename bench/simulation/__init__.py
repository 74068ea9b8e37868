"""Policies on machines that are not here."""
