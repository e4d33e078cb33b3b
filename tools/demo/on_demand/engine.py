"""The rollout engine: holds the model in BF16 and says, in lines of JSON, the digest of its weights at each version. Ended by a
signal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch

import dws
from tools.demo.on_demand.model import Transformer
from tools.demo.weights_hash import weights_sha256

_SEED = 99  # other weights than the trainer's
_READY_SECONDS = 300.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--receiver", required=True, help="its --socket")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Transformer(_SEED).to(torch.bfloat16)
    last = 0
    with dws.Engine(options.receiver) as engine:
        engine.attach(model)
        engine.wait_ready(_READY_SECONDS)
        while True:
            with engine.running(_READY_SECONDS) as grant:
                version = grant.version
                if version != last:
                    said = {"version": version, "sha256": weights_sha256(model.named_parameters())}
                    sys.stdout.write(json.dumps(said) + "\n")
                    sys.stdout.flush()
            if version == last:
                time.sleep(0.005)
            last = version


if __name__ == "__main__":
    main()
