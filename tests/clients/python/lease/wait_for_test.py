"""dws.Engine.running entered by asyncio.wait_for, which before Python 3.12 enters in a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import unittest
from typing import Any

import dws
from dws.lease import ExecutionLease
from tests.clients.python.lease.lease_test import WAIT_SECONDS, grant, opened, run, running


class WaitForTest(unittest.TestCase):
    def test_blocks_that_wait_for_enters_belong_to_the_task_that_made_them(self) -> None:
        async def plain(lease: ExecutionLease) -> int:
            async with running(lease, None) as held:
                return held.version

        async def waited_for(lease: ExecutionLease) -> int:
            async with contextlib.AsyncExitStack() as stack:
                held = await asyncio.wait_for(stack.enter_async_context(running(lease, None)), WAIT_SECONDS)
                return held.version

        async def plain_with(lease: ExecutionLease) -> int:
            with running(lease, None) as held:
                return held.version

        async def main(nested: Any) -> None:
            lease, shut = opened(), asyncio.Event()

            async def another() -> int:
                await shut.wait()
                return await plain(lease)

            other = asyncio.create_task(another())
            block = running(lease, None)
            await asyncio.wait_for(block.__aenter__(), WAIT_SECONDS)
            self.assertTrue(lease.inside)
            lease.shut("commit")
            for _ in range(20):
                self.assertEqual(await nested(lease), 1)
            shut.set()
            while not lease._waiting:  # the other request is not inside
                await asyncio.sleep(0)
            await block.__aexit__(None, None, None)
            self.assertTrue(lease.wait_empty(0))
            lease.open(grant(2))
            self.assertEqual(await other, 2)
            self.assertEqual(lease._makers, {})

        for nested in (plain, waited_for, plain_with):
            with self.subTest(nested.__name__):
                run(main(nested))

    def test_blocks_of_wait_for_that_overlap_are_refused(self) -> None:
        async def main() -> None:
            lease = opened()
            blocks = [running(lease, None)]
            await asyncio.wait_for(blocks[0].__aenter__(), WAIT_SECONDS)
            lease.shut("commit")
            with self.assertRaisesRegex(dws.StateError, "overlap"):
                for _ in range(20):
                    blocks.append(running(lease, None))
                    await asyncio.wait_for(blocks[-1].__aenter__(), WAIT_SECONDS)
                    await blocks[-2].__aexit__(None, None, None)

        run(main())


if __name__ == "__main__":
    unittest.main()
