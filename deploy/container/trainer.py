"""A trainer for compose.yaml: the one of README's section "By hand"."""

import dws
import numpy as np

rng = np.random.default_rng(7)
with dws.Trainer("/run/dws/sender.sock", job_id="first") as trainer:
    views = trainer.register({"layer.weight": np.zeros((1024, 1024), np.float32)})
    weights = views["layer.weight"].reshape(-1)
    for version in range(1, 6):
        weights[rng.integers(0, weights.size, 8000)] += 0.01  # an optimizer step
        trainer.publish(version)
        result = trainer.wait(version, policy="all", timeout=60)
        print(f"version {version}: {result.wire_bytes} bytes, sum {weights.sum():.4f}")
