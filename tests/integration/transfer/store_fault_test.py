"""A store that hangs, or answers with more than was asked for, beside a connection to the sender."""

from __future__ import annotations

import threading
import time
import unittest
from typing import Optional

from tests.integration.transfer import store_test
from tests.integration.transfer.s3_store import Request


class StoreFaultTest(store_test.StoreCase):
    def test_a_store_that_hangs_beside_a_connection_costs_time_once(self) -> None:
        self.sender_starts()
        self.register()
        self.publish()
        engine, live = self.joins("beside", senders=True)
        self.assert_at(engine, live)
        hangs = threading.Event()
        self.addCleanup(hangs.set)
        held: list[str] = []

        def fault(request: Request) -> Optional[object]:
            if request.method == "GET" and "/receivers/" not in request.query.get("prefix", ""):
                held.append(request.key)
                hangs.wait(120)
            return None

        self.store.fault = fault
        began = time.monotonic()
        self.publish(0.3)
        self.assert_at(engine, live)
        self.assertLess(time.monotonic() - began, 25)  # an attempt at the store takes 15 s
        self.assertTrue(held)
        began = time.monotonic()
        for _ in range(3):
            self.publish(0.3)
            self.assert_at(engine, live)
        self.assertLess(time.monotonic() - began, 15)
        receiver = self.cluster.receivers[0]
        self.assertGreater(receiver.metric("dws_receiver_source_bytes_total", 'content="delta",source="grpc"'), 0)

    def test_a_gateway_that_ignores_ranges_is_passed_over(self) -> None:
        """A delta of more than one request: it comes from the sender, and the receiver names what the store lacks."""
        self.sender_starts()
        self.register({"large": (3000, 1000)})
        self.publish()
        engine, live = self.joins("beside", senders=True)
        self.assert_at(engine, live)

        def fault(request: Request) -> Optional[object]:
            whole = self.store.objects.get(request.key, b"")
            return (lambda _: whole) if request.method == "GET" and request.key.endswith("/delta") else None

        self.store.fault = fault
        self.publish(0.9)
        self.assert_at(engine, live)
        receiver = self.cluster.receivers[0]
        self.assertGreater(receiver.metric("dws_receiver_source_bytes_total", 'content="delta",source="grpc"'), 0)
        self.assertRegex(receiver.log_tail(1000), r"the reply is larger than \d+ bytes")


if __name__ == "__main__":
    unittest.main()
