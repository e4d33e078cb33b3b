"""dws.ray without Ray: what is missing is said, wrong arguments are refused, and a job's table is kept."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
import unittest

import dws
from tests.clients.python.ray import stand_in_ray

_IMPORTS = """
import sys
sys.modules["ray"] = None  # as if it were not installed
import dws
assert "dws.ray" not in sys.modules
try:
    import dws.ray
except ImportError as error:
    assert error.name == "ray" and "pip install ray" in str(error), error
else:
    raise SystemExit("dws.ray was imported")
"""


class WithoutRayTest(unittest.TestCase):
    def test_dws_does_not_import_it_and_it_says_what_to_install(self) -> None:
        done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True, timeout=100)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)


RAY = stand_in_ray.install()

import dws.ray  # noqa: E402
from dws.ray.link import Here, Link, OtherJobError  # noqa: E402
from dws.ray.table import Entry, Table, to_dial  # noqa: E402


def sender(rank: int, ranks: int = 2, node: str = "a", address: str = "10.0.0.1:1", claim: int = 1) -> Entry:
    return Entry(f"sender of rank {rank}", (claim, 0), "01", node, f"node {node}", f"/run/{node}/{rank}", address, rank, ranks)


def receiver(name: str = "r", node: str = "b", claim: int = 1, **options: object) -> Entry:
    entry = Entry(f"receiver '{name}'", (claim, 0), "01", node, f"node {node}", f"/run/{node}/{name}")
    return dataclasses.replace(entry, **options)  # type: ignore[arg-type]


class TableTest(unittest.TestCase):
    def setUp(self) -> None:
        self.table = Table("job", "01")

    def test_what_is_dialled_is_told_once_and_again_when_it_changes(self) -> None:
        first = self.table.exchange(receiver(), "")
        self.assertEqual(first.dialled, ())
        self.assertIsNone(self.table.exchange(receiver("other"), first.state).dialled)  # a receiver changes nothing
        self.table.exchange(sender(0), "")
        second = self.table.exchange(receiver(), first.state)
        self.assertEqual(second.dialled, (sender(0),))
        self.table.exchange(sender(0), "")
        self.assertIsNone(self.table.exchange(receiver(), second.state).dialled)
        moved = sender(0, address="10.0.0.2:1")
        self.table.exchange(moved, "")
        third = self.table.exchange(receiver(), second.state)
        self.assertEqual(third.dialled, (moved,))
        self.table.leave(moved.name, (0, 0))  # of an earlier one
        self.assertIsNone(self.table.exchange(receiver(), third.state).dialled)
        self.table.leave(moved.name, moved.claim)
        self.assertEqual(self.table.exchange(receiver(), third.state).dialled, ())
        self.assertIsNotNone(Table("job", "01").exchange(receiver(), third.state).dialled)  # another table

    def test_of_one_name_the_later_one_counts(self) -> None:
        for make in (lambda claim: sender(1, claim=claim), lambda claim: receiver(claim=claim)):
            self.table.exchange(make(2), "")
            self.assertEqual(self.table.exchange(make(1), "").later, make(2).where)
            self.assertEqual(self.table.exchange(make(3), "").later, "")
            self.assertEqual(self.table.exchange(make(2), "").later, make(3).where)

    def test_daemons_of_another_ray_job_are_refused(self) -> None:
        reply = self.table.exchange(dataclasses.replace(sender(0), ray_job="02"), "")
        self.assertEqual(reply.other_job, "job 'job' belongs to Ray job 01, and this is Ray job 02")
        self.assertEqual(self.table.exchange(receiver(), "").dialled, ())
        self.assertEqual(self.table.whose(), "it belongs to Ray job 01")

    def test_many_daemons_ask_less_often(self) -> None:
        seconds = [self.table.exchange(receiver(str(number)), "").poll_seconds for number in range(1000)]
        self.assertEqual((seconds[0], seconds[199], seconds[999]), (1, 1, 5))


class DialTest(unittest.TestCase):
    def test_all_ranks_are_dialled_by_the_socket_of_this_node_or_by_tcp(self) -> None:
        found = to_dial([sender(1, node="b"), sender(0)], receiver())
        self.assertEqual(found.flags, ("--sender=10.0.0.1:1", "--sender=unix:/run/b/1"))

    def test_what_is_missing_is_named(self) -> None:
        for dialled, missing in (
            ([], "no sender of rank 0: call dws.ray.sender"),
            ([sender(1)], "no sender of rank 0"),
            ([sender(0, 4), sender(2, 4)], "no sender of rank 1, 3, expected those of 4 ranks"),
            ([sender(0, 2), sender(1, 4)], "no sender of rank 1, expected those of 2 ranks"),  # of a trainer before
            ([sender(0, 20)], "no sender of rank 1, 2, 3, 4, 5, 6, 7, 8, ..., expected those of 20 ranks"),
            ([sender(0, 1, address="")], "sender of rank 0 on node a listens on no TCP address, .*insecure=True"),
        ):
            found = to_dial(dialled, receiver())
            self.assertIsNone(found.flags)
            self.assertRegex(found.missing, missing)

    def test_members_of_a_group_dial_their_leader(self) -> None:
        member = receiver("1", group="g", group_index=1)
        leader = receiver("0", "a", group="g", address="10.0.0.3:2")
        other = receiver("x", "a", group="h", address="10.0.0.4:2")
        self.assertRegex(to_dial([sender(0, 1), other], member).missing, "no receiver leads group 'g'")
        self.assertEqual(to_dial([sender(0, 1), other, leader], member).flags, ("--sender=10.0.0.1:1", "--group-leader=10.0.0.3:2"))
        self.assertEqual(to_dial([sender(0, 1)], leader).flags, ("--sender=unix:/run/a/0",))
        self.assertTrue(leader.is_dialled)
        self.assertFalse(member.is_dialled)


class ArgumentsTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="dws-", dir="/tmp")
        self.addCleanup(folder.cleanup)
        self.top = folder.name
        self.addCleanup(RAY.actors.clear)
        self.addCleanup(setattr, RAY, "initialized", True)
        self.addCleanup(setattr, RAY, "job", "01")

    def test_wrong_arguments_are_refused_and_nothing_is_left(self) -> None:
        for rank, size in ((1, 1), (-1, 2), (0, 0)):
            with self.assertRaisesRegex(dws.InvalidArgumentError, f"rank {rank} of world size {size}"):
                dws.ray.sender("job", rank, size)
        for name in ("sender", "group_leader"):
            with self.assertRaisesRegex(dws.InvalidArgumentError, f"{name}=: where .* found through Ray"):
                dws.ray.receiver("job", "r", **{name: "10.0.0.1:1"})
        with self.assertRaisesRegex(dws.DaemonUnavailableError, "/nowhere: expected dws-sender"):
            dws.ray.sender("job", program="/nowhere", run_dir=self.top)
        with self.assertRaisesRegex(dws.DaemonFailedError, "ended before it served"):
            dws.ray.sender("job", program="/bin/false", run_dir=self.top)
        self.assertEqual(RAY.actors, {})

    def test_a_process_that_has_not_joined_ray_is_told(self) -> None:
        RAY.initialized = False
        for start in (lambda: dws.ray.sender("job"), lambda: dws.ray.receiver("job", "r")):
            with self.assertRaisesRegex(dws.StateError, r"call ray.init\(\), or call this in an actor"):
                start()

    def test_a_receiver_that_waits_says_for_what(self) -> None:
        with self.assertRaisesRegex(
            dws.DeadlineError, r"(?s)receiver 'r' of job 'job' does not serve after 0.3 s: .*rank 0 calls dws.ray.sender\('job'\)"
        ):
            dws.ray.receiver("job", "r", start_timeout=0.3, program="/bin/false", run_dir=self.top)

    def test_a_name_of_another_job_is_refused(self) -> None:
        first = Link("job", Here(), makes=True)
        first.make(0)
        with self.assertRaisesRegex(dws.StateError, "rank 0 of job 'job' runs already .* belongs to Ray job 01; this is Ray job 01"):
            dws.ray.sender("job", start_timeout=0, program="/bin/false", run_dir=self.top)
        RAY.job = "02"
        with self.assertRaisesRegex(dws.DeadlineError, "job 'job' belongs to Ray job 01, and this is Ray job 02: end that one"):
            dws.ray.receiver("job", "r", start_timeout=0.3, program="/bin/false", run_dir=self.top)
        with self.assertRaises(OtherJobError):
            Link("job", Here(), makes=False).exchange(dataclasses.replace(sender(1), ray_job="02"), "")

    def test_the_table_is_made_again_by_who_made_it(self) -> None:
        link = Link("job", Here(), makes=True)
        link.make(0)
        link.exchange(sender(0), "")
        RAY.kill(RAY.actors["job"])
        with self.assertRaisesRegex(dws.DaemonUnavailableError, "found RayError"):
            link.exchange(sender(0), "")
        self.assertEqual(link.exchange(sender(0), "").dialled, (sender(0),))
        link.close(sender(0))
        self.assertEqual(RAY.actors, {})


if __name__ == "__main__":
    unittest.main()
