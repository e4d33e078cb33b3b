"""The documentation's blocks of one mark (tests/tools/docs_blocks.py) as one script: docs_script.py MARK"""

from __future__ import annotations

import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP))

from tests.tools.docs_blocks import all_blocks  # noqa: E402


def main() -> None:
    blocks = [block for block in all_blocks(TOP) if block.mark == sys.argv[1]]
    if not blocks:
        raise SystemExit(f"docs_script.py: no block is marked {sys.argv[1]}")
    for block in blocks:
        print(f"echo '-- {block}'\n{block.text}", end="")


if __name__ == "__main__":
    main()
