"""dwsctl on a terminal: redrawing, ^C, resizing, restarts, colours."""

from __future__ import annotations

import os
import re
import unittest

from tests.tools.dwsctl.fake_admin import FakeAdmin
from tests.tools.dwsctl.terminal import Screen, Terminal

DWSCTL = os.path.abspath("tools/dwsctl/dwsctl")


def shown(text: str, screen: Screen) -> bool:
    return any(text in line for line in screen.lines)


def version(screen: Screen) -> int:
    """The first percentage in the table; 0 while there is none."""
    found = re.search(r"^rollout-0 +(\d+)", "\n".join(screen.lines), re.MULTILINE)
    return int(found[1]) if found else 0


class TerminalTest(unittest.TestCase):

    def setUp(self) -> None:
        self.daemon = FakeAdmin()
        self.daemon.start()
        self.addCleanup(self.daemon.stop)

    def run_dwsctl(self, *args: str, columns: int = 80, **env: str) -> Terminal:
        terminal = Terminal([DWSCTL, *args, f"--address={self.daemon.address}"], columns, env)
        self.addCleanup(terminal.__exit__)
        return terminal

    def watch(self, columns: int = 80, **env: str) -> Terminal:
        return self.run_dwsctl("watch", "--interval=0.1", columns=columns, **env)

    def assert_table(self, terminal: Terminal, lines: int, columns: int) -> None:
        """Checks for one line of titles and the rows, with the cursor on an empty line below."""
        # The last read may end in the middle of a table.
        terminal.wait_for(lambda s: (s.row, s.column) == (lines, 0), "a whole table")
        screen = terminal.screen
        self.assertEqual([line for line in screen.lines[lines:] if line], [])
        self.assertEqual(sum("daemon" in line for line in screen.lines), 1)
        self.assertLess(max(len(line) for line in screen.lines), columns)

    def test_watch_redraws_its_table_in_place(self) -> None:
        terminal = self.watch()
        terminal.wait_for(lambda s: version(s) >= 110, "ten statuses")
        self.assert_table(terminal, 2, 80)
        self.assertRegex(terminal.screen.lines[1], r"^rollout-0 .* fetching \[#*-*\] \d+%")

    def test_interrupted_watch_leaves_a_clean_terminal_and_exits_with_0(self) -> None:
        terminal = self.watch()
        before = terminal.attributes()
        terminal.wait_for(lambda s: shown("fetching", s), "a status")
        terminal.type(b"\x03")
        self.assertEqual(terminal.end(), 0)
        self.assertEqual(terminal.attributes(), before)
        self.assertEqual(terminal.screen.column, 0)
        self.assert_table(terminal, 2, 80)
        self.assertFalse(shown("^C", terminal.screen))

    def test_watch_follows_the_terminals_size(self) -> None:
        terminal = self.watch(columns=120)
        terminal.wait_for(lambda s: shown("rate", s), "wide titles")
        terminal.resize(50)
        terminal.wait_for(lambda s: not shown("rate", s) and shown("rollout-0", s), "narrow titles")
        self.assert_table(terminal, 2, 50)

    def test_watch_reconnects_to_a_restarted_daemon(self) -> None:
        terminal = self.watch()
        terminal.wait_for(lambda s: shown("fetching", s), "a status")
        self.daemon.stop()
        terminal.wait_for(lambda s: shown("no answer", s) and shown("no daemon answers", s), "loss")
        self.assertTrue(shown("rollout-0", terminal.screen))  # still shown by its name
        self.daemon.finish.clear()
        self.daemon.interval = 2.0  # the second status removes the note "answers again"
        self.daemon.start()
        terminal.wait_for(lambda s: shown("fetching", s) and not shown("no answer", s), "return")
        self.assertIn("answers again", terminal.raw)
        self.assertGreaterEqual(self.daemon.watchers, 2)

    def test_trouble_is_coloured_unless_no_color_is_set(self) -> None:
        self.daemon.reply.ready = False
        self.daemon.reply.reason = "waiting\x1b]0;owned\x07"
        terminal = self.watch()
        terminal.wait_for(lambda s: shown("not ready: waiting?]0;owned?", s), "the reason, harmless")
        self.assertIn("33", terminal.screen.colours)
        plain = self.watch(NO_COLOR="1")
        plain.wait_for(lambda s: shown("not ready", s), "the reason")
        self.assertEqual(plain.screen.colours, set())

    def test_verify_shows_a_bar_and_removes_it(self) -> None:
        terminal = self.run_dwsctl("verify")
        terminal.wait_for(lambda s: shown("comparing live weights [#", s), "a bar")
        self.daemon.finish.set()
        self.assertEqual(terminal.end(), 0)
        lines = [line for line in terminal.screen.lines if line]
        self.assertEqual(
            lines, ["rollout-0: 1000 B of weights compared, all as published at version 7"]
        )

    def test_an_interrupted_operation_says_what_continues(self) -> None:
        for command, words in (
            ("verify", "nothing was changed"),
            ("resync", "the resync continues"),
            ("drain", "stays drained until `dwsctl undrain`"),
        ):
            with self.subTest(command):
                terminal = self.run_dwsctl(command)
                terminal.wait_for(lambda s: shown("[", s), "a bar")
                terminal.type(b"\x03")
                self.assertEqual(terminal.end(), 130)
                self.assertIn(words, terminal.raw)

    def test_interrupting_watch_of_a_silent_daemon_ends_it_at_once(self) -> None:
        # A server binds its methods when it starts; stopping sets `finish`.
        self.daemon.stop()
        self.daemon.Watch = lambda request, context: self.daemon.finish.wait(60)  # type: ignore
        self.daemon.finish.clear()
        self.daemon.start()
        terminal = self.watch()
        terminal.wait_for(lambda s: shown("connecting", s), "the first table")
        terminal.type(b"\x03")
        self.assertEqual(terminal.end(), 0)


if __name__ == "__main__":
    unittest.main()
