"""llama.cpp's own HTTP server, in the environment of the peers; imports nothing of this project.

Its argument is JSON: gguf, threads, slots, slot_tokens, speculation (a type's name or ""),
options (of that type). Writes its address; ends when its input does.
"""

import json
import sys
from typing import Any

import xllamacpp  # type: ignore[import-not-found]


def main() -> None:
    settings = json.loads(sys.argv[1])
    server = xllamacpp.Server(_parameters(settings))
    print(json.dumps(server.listening_address.removeprefix("http://")), flush=True)
    sys.stdin.read()


def _parameters(settings: dict[str, Any]) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = settings["gguf"]
    parameters.n_parallel = settings["slots"]
    parameters.n_ctx = settings["slots"] * settings["slot_tokens"]
    parameters.cpuparams.n_threads = settings["threads"]
    parameters.cpuparams_batch.n_threads = settings["threads"]
    parameters.cache_ram_mib = 0  # no answer may profit from an earlier one
    parameters.ui = False
    if name := settings["speculation"]:
        kind = f"COMMON_SPECULATIVE_TYPE_{name.upper()}"
        parameters.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
        for option, value in settings["options"].items():
            setattr(getattr(parameters.speculative, name), option, value)
    return parameters


if __name__ == "__main__":
    main()
