"""docs/events.md explains each warning and error that the sources log, and nothing else."""

from __future__ import annotations

import os
import re
import unittest
from pathlib import Path

from tools.docs.events import DOCUMENT, Logged, arguments, by_event, calls, cells_of, sources

TOP = Path(os.path.realpath("WORKSPACE")).parent
ROW = re.compile(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)


class EventsTest(unittest.TestCase):
    text: str
    rows: dict[str, tuple[str, str, str, str]]
    logged: dict[str, list[Logged]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.text = (TOP / DOCUMENT).read_text("utf-8")
        cls.rows = {row[0]: row[1:] for row in ROW.findall(cls.text)}
        cls.logged = by_event(TOP)  # reads all sources

    def test_each_event_of_the_sources_is_explained(self) -> None:
        self.assertGreater(len(self.logged), 100)
        missing = {event: [f"{one.path}:{one.line}" for one in places] for event, places in self.logged.items() if event not in self.rows}
        self.assertEqual(missing, {})

    def test_each_entry_is_logged_by_the_sources(self) -> None:
        self.assertEqual(set(self.rows) - set(self.logged), set())

    def test_no_event_has_two_entries_and_no_row_is_passed_over(self) -> None:
        self.assertEqual(len(ROW.findall(self.text)), len(self.rows))
        self.assertEqual(len(re.findall(r"(?m)^\| `", self.text)), len(self.rows))

    def test_levels_and_daemons_are_those_of_the_sources(self) -> None:
        for event, (level, daemon, _, _) in self.rows.items():
            with self.subTest(event):
                self.assertEqual((level, daemon), cells_of(self.logged[event]))

    def test_each_entry_says_what_it_means_and_what_to_do(self) -> None:
        for event, (_, _, means, do) in self.rows.items():
            with self.subTest(event):
                self.assertGreaterEqual(len(means.split()), 5)
                self.assertRegex(means.strip(), r"[.)]$")
                self.assertRegex(do.strip(), r"[.)]$")

    def test_every_event_in_other_documents_that_is_called_one_exists(self) -> None:
        code = "".join(sources(TOP).values())
        for path in sorted((TOP / "docs").glob("*.md")):
            for event in re.findall(r"log event `(\w+)`", path.read_text("utf-8")):
                with self.subTest(path.name, event=event):
                    self.assertIn(f'"{event}"', code)


class CallsTest(unittest.TestCase):
    def test_calls_are_found_in_code_and_not_in_comments(self) -> None:
        text = '''
// LogWarning("in_a_comment");
/* LogError("in_another") */
void F() {
  LogInfo("not_one", {});
  LogWarning("plain", {{"reason", Message(status, "a, b (c")}});
  LogError(
      "on_the_next_line",
      {{"x", 1}});
  LogWarning(a ? "first" : "second");
  LogEvent(ok ? LogLevel::kInfo : LogLevel::kWarning, "by_level", {});
  LogEvent(LogLevel::kDebug, "never", {});
  LogEvent(level, "unknown_level", {});
  LogError(indirect, {});
  const char* text = "LogError( // no";
}
'''
        self.assertEqual(
            [(one.event, one.level, one.line) for one in sorted(calls("a.cc", text.replace('"LogError( // no"', '"// no"'), {"indirect": {"found"}}))],
            [("by_level", "warning", 11), ("first", "warning", 10), ("found", "error", 14), ("on_the_next_line", "error", 7),
             ("plain", "warning", 6), ("second", "warning", 10), ("unknown_level", "warning", 13)])

    def test_an_event_that_cannot_be_known_is_an_error(self) -> None:
        with self.assertRaisesRegex(ValueError, "a.cc:1: expected a literal event"):
            calls("a.cc", "LogError(computed, {});", {})

    def test_arguments_end_where_the_call_ends(self) -> None:
        self.assertEqual(arguments('f(a, {b, c}, "d, )") + g(e)', 2), ["a", "{b, c}", '"d, )"'])
        with self.assertRaises(ValueError):
            arguments("f(a, b", 2)

    def test_columns_follow_from_the_places(self) -> None:
        one, two = Logged("e", "warning", "sender_daemon/a.cc", 1), Logged("e", "error", "receiver_daemon/b.cc", 1)
        self.assertEqual(cells_of([one]), ("warning", "sender"))
        self.assertEqual(cells_of([one, two]), ("error or warning", "both"))
        self.assertEqual(cells_of([Logged("e", "error", "common/a.cc", 1)]), ("error", "both"))


if __name__ == "__main__":
    unittest.main()
