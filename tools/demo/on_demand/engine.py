"""The rollout engine: holds the model in BF16 and says, in lines of JSON, the digest of its weights at each version. Ended by a
signal.
"""

from __future__ import annotations

import argparse

import torch

import dws
from tools.demo.engine_versions import new_versions
from tools.demo.on_demand.model import Transformer
from tools.demo.on_demand.processes import say
from tools.demo.weights_hash import weights_sha256

_SEED = 99  # other weights than the trainer's
_READY_SECONDS = 300.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--receiver", required=True, help="its --socket")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = Transformer(_SEED).to(torch.bfloat16)
    with dws.Engine(options.receiver) as engine:
        engine.attach(model)
        engine.wait_ready(_READY_SECONDS)
        for grant in new_versions(engine, _READY_SECONDS):
            say(version=grant.version, sha256=weights_sha256(model.named_parameters()))


if __name__ == "__main__":
    main()
