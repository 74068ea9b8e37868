"""Carries this machine's pip configuration into a build: `pip config list | pip_mounts.py FOLDER`.

Writes FOLDER/pip.conf and prints a mount `host:container:ro` for it and for every path that it
names, one a line. Standard library only.
"""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

CONFIGURATION = "/etc/pip.conf"
CERTIFICATES = "/opt/certificates"


def carried(lines: Iterator[str], folder: Path) -> Iterator[str]:
    """The mounts, for lines `scope.key='value'`; a key of the environment comes first."""
    values: dict[str, str] = {}
    for line in lines:
        if match := re.match(r"(?::env:|[\w-]+)\.([\w-]+)='(.*)'$", line.strip()):
            values.setdefault(match[1], match[2].replace("\\n", " ").strip())
    if certificate := values.get("cert"):
        shutil.copy(certificate, folder / "bundle.crt")
        values["cert"] = f"{CERTIFICATES}/bundle.crt"
        yield f"{folder}:{CERTIFICATES}:ro"
    for word in " ".join(values.values()).split():
        path = word.removeprefix("file://").removesuffix("/simple")  # an index and its files
        if path.startswith("/") and Path(path).exists():
            yield f"{path}:{path}:ro"
    options = "".join(f"{key} = {value}\n" for key, value in values.items())
    (folder / "pip.conf").write_text(f"[global]\n{options}", encoding="utf-8")
    yield f"{folder}/pip.conf:{CONFIGURATION}:ro"


if __name__ == "__main__":
    for mount in carried(iter(sys.stdin), Path(sys.argv[1])):
        print(mount)
