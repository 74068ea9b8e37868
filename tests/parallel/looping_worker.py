"""A rank for tests, started once for many lives of a group, one at a time.

Each line of standard input is a JSON object: "arguments" of the worker, "path" where its cache
goes when it is sent home.
"""

import json
import sys

import torch

from canopy.parallel.worker import parse, serve_rank

for line in sys.stdin:
    life = json.loads(line)
    cache = serve_rank(parse(life["arguments"]))
    torch.save((cache.keys, cache.values), life["path"])
