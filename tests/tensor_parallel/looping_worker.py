"""A rank for tests, started once for many lives of a group, one at a time.

Each line of standard input is a JSON object: "arguments" of the worker, "path" where its cache
goes when it is sent home.
"""

import json
import sys

import torch

from canopy.errors import CanopyError
from canopy.verifier.tensor_parallel.worker import parse, serve_rank

for line in sys.stdin:
    life = json.loads(line)
    try:
        cache = serve_rank(parse(life["arguments"]))
    except (CanopyError, RuntimeError):
        continue  # rank 0 knows
    torch.save((cache.keys, cache.values), life["path"])
