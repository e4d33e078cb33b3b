"""A sender detects which tensors change nearly everywhere and reports them; the same bits
arrive."""

from __future__ import annotations

import json
import os
import subprocess
import unittest

import numpy as np

from tests.integration.integration_case import IntegrationCase, change

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")


class DensityTest(IntegrationCase):

    def test_a_group_that_changes_everywhere_is_reported_until_it_changes_less(self) -> None:
        self.start()
        sender = self.cluster.senders[0]
        random = np.random.default_rng(11)
        # Few of the codes change; the scales are computed again for each version.
        scales = [f"layers.{layer}.scales" for layer in range(2)]
        weights = {name: np.zeros(100_000, np.float32) for name in scales}
        weights["layers.0.codes"] = random.integers(0, 256, 300_000, np.uint8)
        trainer = self.trainer()
        source = trainer.register(weights)
        engine = self.engine()
        live = engine.attach({name: np.zeros_like(array) for name, array in weights.items()})

        def publish(version: int, scales_share: float) -> None:
            for name, array in source.items():
                if name in scales and scales_share == 1:
                    array.view(np.uint8)[:] = random.integers(0, 256, array.nbytes, np.uint8)
                else:
                    change(array, random, scales_share if name in scales else 0.01)
            trainer.publish(version)
            trainer.wait(version)
            self.await_version(engine, version)
            self.assert_same_weights(engine, live, source)

        def status(*flags: str) -> str:
            command = [DWSCTL, "status", "--socket", sender.socket, *flags]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
            self.assertEqual(ran.returncode, 0, ran.stderr)
            return ran.stdout

        publish(1, 1)
        publish(2, 1)
        self.assertNotIn("layers.*.scales", status())  # once is not enough
        for version in range(3, 21):  # one of them is encoded both ways again
            publish(version, 1)
        self.assertIn("1 of 2 groups of tensors", status())
        self.assertIn("layers.*.scales", status())
        density = json.loads(status("--json"))["sender"]["density"]
        self.assertEqual((density["groups"], density["dense_groups"]), (2, 1))
        self.assertTrue(density["version_dense"])
        (group,) = density["worst"]
        self.assertEqual(group["name"], "layers.*.scales")
        self.assertEqual(int(group["elements"]), 200_000)
        self.assertGreater(int(group["changed"]), 199_000)
        self.assertEqual(group["wire_bytes"], density["dense_bytes"])
        self.assertLessEqual(int(group["wire_bytes"]), int(group["full_bytes"]))
        self.assertEqual(sender.metric("dws_sender_dense_groups"), 1)
        self.assertEqual(sender.metric("dws_sender_dense_version"), 1)
        self.assertGreater(
            sender.metric("dws_sender_dense_bytes_total"), 17 * int(group["wire_bytes"])
        )

        publish(21, 0.01)
        self.assertIn("layers.*.scales", status())
        publish(22, 0.01)
        self.assertNotIn("dense", status())
        self.assertEqual(sender.metric("dws_sender_dense_groups"), 0)
        log = sender.log_tail(1000)
        self.assertEqual((log.count("group_dense"), log.count("group_sparse")), (1, 1))


if __name__ == "__main__":
    unittest.main()
