"""The engine of the check, a process of its own: plain torch, attached to a dws-receiver. For each version in
memory it writes one line into a file, the version and the digest of all of its weights. Ended by a signal.
"""

from __future__ import annotations

import argparse
import time

import dws
from tools.trainers_check import models

ENGINE_SEED = 99  # other weights than the trainer's


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("receiver", "kind", "dtype", "seen"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    model = models.make(options.kind, ENGINE_SEED, options.dtype)
    with dws.Engine(options.receiver) as engine, open(options.seen, "a", buffering=1) as seen:
        engine.attach(model, timeout=300)
        last = (0, "")
        while True:
            with engine.running() as grant:
                now = (grant.version, str(grant.stream))
                if now != last:
                    digest = models.digest(dws.named_tensors(model))
                    seen.write(f"{grant.version} {digest}\n")
            if now == last:
                time.sleep(0.002)
            last = now


if __name__ == "__main__":
    main()
