"""The end-to-end benchmark. Processes that it starts import this file, too, and are not made to wait for more."""

import sys

if __name__ == "__main__":
    from tools.bench.end_to_end.program import main

    sys.exit(main())
