"""Makes one file of what gpu_check and its Python parts printed (tests/gpu/README.md says what is in it), and
says how it came out. The exit status is 1 if a check failed.

    python3 collect.py LINES OUT COMMAND COMMIT
"""

from __future__ import annotations

import collections
import datetime
import json
import sys
from typing import Any


def collect(text: str, command: str, commit: str, now: datetime.datetime) -> dict[str, Any]:
    """The file's content."""
    results = []
    for line in text.splitlines():
        if line.startswith("{"):
            results.append(json.loads(line))
    facts = [result["facts"] for result in results if "facts" in result]
    return {
        "format": 1,
        "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit,
        "command": command,
        "fake_driver": any(result.get("fake_driver", False) for result in results),
        "machine": facts[0] if facts else {},
        "results": [result for result in results if "facts" not in result],
    }


def summary(content: dict[str, Any]) -> str:
    counts = collections.Counter(result["status"] for result in content["results"])
    return f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"


def main() -> int:
    lines, out, command, commit = sys.argv[1:]
    with open(lines) as file:
        now = datetime.datetime.now(datetime.timezone.utc)
        content = collect(file.read(), command, commit, now)
    with open(out, "w") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
    if content["fake_driver"]:
        print("fake driver: the figures of this run mean nothing", file=sys.stderr)
    print(f"in total: {summary(content)}; {out}", file=sys.stderr)
    print(summary(content))
    return 1 if any(result["status"] == "failed" for result in content["results"]) else 0


if __name__ == "__main__":
    sys.exit(main())
