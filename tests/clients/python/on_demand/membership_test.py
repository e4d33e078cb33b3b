"""What a rank does when its membership has ended. The order in which the connections of a sender that is killed
are closed is the kernel's: stand-ins have the one that is rare."""

from __future__ import annotations

import unittest
from unittest import mock

from dws.errors import DaemonUnavailableError, StateError
from dws.on_demand.membership import Membership


class MembershipTest(unittest.TestCase):
    def setUp(self) -> None:
        self.trainer = mock.Mock(session=7, connected=True)
        self.members = [mock.Mock(lost=None), mock.Mock(lost=None)]
        made = iter(self.members)
        self.joined = mock.Mock()
        self.membership = Membership(
            mock.Mock(trainer=self.trainer), mock.Mock(), lambda: next(made), lambda *parts: mock.Mock(), 2, self.joined
        )
        self.membership.join(1)

    def test_a_rank_joins_again_though_its_registration_is_not_closed_yet(self) -> None:
        self.members[0].lost = DaemonUnavailableError("the connection broke")
        self.membership.join_if_lost(1)
        self.trainer.reconnect.assert_called_once()
        self.trainer.publish_again.assert_called_once()
        self.assertIs(self.membership.member, self.members[1])
        self.assertEqual(self.joined.call_count, 2)

    def test_a_rank_whose_place_another_process_has_taken_says_so(self) -> None:
        self.members[0].lost = StateError("another process has taken its place")
        with self.assertRaisesRegex(StateError, "has taken its place"):
            self.membership.join_if_lost(1)
        with self.assertRaisesRegex(StateError, "has taken its place"):
            self.membership.publish(2)
        self.trainer.reconnect.assert_not_called()
        self.trainer.connected = False  # the sender has ended since
        self.membership.join_if_lost(1)
        self.trainer.reconnect.assert_called_once()


if __name__ == "__main__":
    unittest.main()
