"""Benchmarks behind one door: `python -m bench NAME`, see bench/registry.py for the list.

A benchmark measures and reports; it never asserts a time. Everything it prints and writes comes
from one `Result`: named lists of flat records (the tables), and flat `figures`.
"""

import os

from canopy.server.runtime import THREAD_VARIABLES

# Threads wait as they do in the server's processes; read once, when torch is loaded.
os.environ.update(THREAD_VARIABLES)
