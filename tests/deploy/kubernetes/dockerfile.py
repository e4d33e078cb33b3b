"""What deploy/container/Dockerfile says."""

from __future__ import annotations

import json
import re
from pathlib import Path


def instructions(path: Path) -> list[tuple[str, str]]:
    """Its instructions and their arguments, lines put together."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines if line.strip())]


def entrypoint(path: Path) -> list[str]:
    (found,) = (rest for word, rest in instructions(path) if word == "ENTRYPOINT")
    return list(json.loads(found))
