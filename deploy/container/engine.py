"""An engine for compose.yaml: the one of README's section "By hand"."""

import time

import dws
import numpy as np

with dws.Engine("/run/dws/receiver.sock") as engine:
    views = engine.attach({"layer.weight": np.zeros((1024, 1024), np.float32)})
    seen = 0
    while True:  # until Ctrl-C
        with engine.running(timeout=60) as grant:
            time.sleep(0.01)  # a forward pass
            if grant.version != seen:
                seen = grant.version
                print(f"version {seen}: sum {views['layer.weight'].sum():.4f}")
