"""What senders say of rounds of PULSELoCo: the round, whom a worker waits for, and the bytes that they send, which proxies between
them count too.
"""

from __future__ import annotations

import unittest
from concurrent import futures
from typing import Any

import numpy as np

from dws.dtypes import DType
from dws.on_demand.pulse_loco import LocalRounds, PulseLoCo, Settings
from tests.clients.python.pulse_loco.reference import Array, local_steps, weights
from tests.integration.fault_proxy import FaultProxy
from tests.integration.integration_case import eventually
from tests.integration.trainers.local_rounds_case import SECONDS, LocalRoundsCase

RANKS = 4
SHARD = 18_432  # weights: those of the model of tools/bench.sh pulse_loco
STEPS = 2.2e-7  # about as many weights are sent as there
WARM_UP, ROUNDS = 2, 6
# For each object that a worker fetches, and the messages with which workers agree about a round.
REST_BYTES_MAX = 4000


class BytesTest(LocalRoundsCase):
    def start_between_hosts(self) -> None:
        """Each sender on a host of its own, and a proxy before each, by which the others reach it."""
        self.ranks = RANKS
        for rank in range(RANKS):
            self.cluster.add_sender(rank, "--insecure", f"--host-id=host-{rank}").reserve_ports()
        ports = [sender.ports["sync"] for sender in self.cluster.senders]
        self.proxies = [FaultProxy(port) for port in ports]
        for proxy in self.proxies:
            self.addCleanup(proxy.__exit__)
        for rank, sender in enumerate(self.cluster.senders):
            seen = [ports[r] if r == rank else self.proxies[r].port for r in range(RANKS)]
            sender.command.append("--train-peers=" + ",".join(f"127.0.0.1:{port}" for port in seen))
            sender.start()

    def join_with(self, theta: Array) -> None:
        """All workers; `own_bytes` counts what each has to send of its objects."""
        self.own_bytes = {"contributions": 0, "sums": 0}
        for rank in range(RANKS):
            settings = Settings(0.7, 0.9, DType.BF16)
            self.join(PulseLoCo(theta, rank=rank, shards=[SHARD] * RANKS, settings=settings), missing_after=SECONDS)
            self.count_puts(self.rounds[rank])

    def count_puts(self, rounds: LocalRounds) -> None:
        put = rounds._exchange.put

        def counted(process: int, name: str, number: int, data: bytes, *rest: Any, **named: Any) -> None:
            if name.startswith("part-"):
                self.own_bytes["contributions"] += len(data)
            if name.startswith("sum-"):
                self.own_bytes["sums"] += len(data) * (RANKS - 1)
            put(process, name, number, data, *rest, **named)

        rounds._exchange.put = counted  # type: ignore[method-assign]

    def counted(self) -> tuple[float, float, int]:
        """What senders say that they have sent and received, and what the proxies have seen."""
        said = [sum(sender.metric(f"dws_sender_object_{what}_bytes_total") for sender in self.cluster.senders)
                for what in ("sent", "received")]
        return said[0], said[1], sum(proxy.bytes_down + proxy.bytes_up for proxy in self.proxies)

    def run_rounds(self, count: int) -> None:
        def run(rounds: LocalRounds) -> None:
            for _ in range(count):
                worker = rounds.worker
                rounds.run(local_steps(np.random.default_rng([worker.rank, worker.round]), rounds.theta_g, STEPS))

        self.each(run)

    def test_the_bytes_of_a_round_are_those_of_the_objects_and_few_more(self) -> None:
        self.start_between_hosts()
        theta = weights(np.random.default_rng(7), SHARD * RANKS)
        self.join_with(theta)
        self.run_rounds(WARM_UP)
        own_before, before = dict(self.own_bytes), self.counted()
        self.run_rounds(ROUNDS)
        sent, received, wire = (now - then for now, then in zip(self.counted(), before))
        own = {name: self.own_bytes[name] - own_before[name] for name in own_before}
        each = RANKS * ROUNDS
        print(f"bytes a worker and round: contributions {own['contributions'] / each:.0f}, sums {own['sums'] / each:.0f}, "
              f"sent by its sender {sent / each:.0f}, over TCP {wire / each:.0f}; DiLoCo's contributions "
              f"{4 * SHARD * (RANKS - 1)}")
        self.assertEqual(sent, received)
        self.assertGreater(sent, sum(own.values()))
        self.assertLess(sent, sum(own.values()) + each * REST_BYTES_MAX)
        self.assertGreater(wire, sent)
        self.assertLess(wire, 1.1 * sent)
        for sender in self.cluster.senders:
            self.assertEqual(sender.metric("dws_sender_rounds"), WARM_UP + ROUNDS)
            self.assertEqual(sender.metric("dws_sender_object_process_attached"), 1)
            self.assertGreater(sender.metric("dws_sender_objects"), 0)
            held, most = sender.metric("dws_sender_object_bytes"), sender.metric("dws_sender_object_bytes_max")
            self.assertTrue(0 < held < most, (held, most))
            self.assertEqual(sender.metric("dws_sender_object_puts_refused_total"), 0)

    def test_a_sender_names_the_worker_that_its_own_waits_for(self) -> None:
        self.start_between_hosts()
        self.join_with(np.zeros(SHARD * RANKS, np.float32))
        sender = self.cluster.senders[0]
        late = self.rounds.pop(2)
        with futures.ThreadPoolExecutor(RANKS) as pool:
            ends = [pool.submit(rounds.run, None) for rounds in self.rounds.values()]
            eventually(lambda: "'hello' number 0 of rank 2" in sender.page("/status"), lambda: sender.page("/status"))
            self.assertGreater(sender.metric("dws_sender_object_wait_seconds"), 0)
            eventually(lambda: self.cluster.senders[2].metric("dws_sender_object_waits") == 1, lambda: "rank 0 waits there")
            ends.append(pool.submit(late.run, None))
            for end in ends:
                end.result(SECONDS)
        self.assertEqual(sender.metric("dws_sender_object_wait_seconds"), 0)


if __name__ == "__main__":
    unittest.main()
