"""The warnings and errors that the daemons log, found in the sources: what docs/events.md has to explain.

  python3 -m tools.docs.events    prints each event with its levels and the places that log it
"""

from __future__ import annotations

import collections
import dataclasses
import re
from pathlib import Path

DOCUMENT = Path("docs/events.md")
FOLDERS = ("common", "sender_daemon", "receiver_daemon")
# The log itself: it passes events on, apart from its own.
_LOG_FOLDER = "common/base/log/"
_CALL = re.compile(r"\bLog(Warning|Error|Event)\(")
_EVENT = re.compile(r'"([a-z][a-z0-9_]*)"')
# Where an event is not a literal at its call: a pattern of the literals, in any source, for the words that stand there.
INDIRECT = {
    "options_.failed_event": re.compile(r'\.failed_event = "([a-z0-9_]+)"'),  # sender_daemon/publish/offer_loop.h
    "event": re.compile(r'\bNote\([^;]*?"([a-z0-9_]+)"'),  # SharedReceivers::Note
}
# The log writes it past its own functions.
_OWN = {"log_lines_lost": ("warning", f"{_LOG_FOLDER}log.cc")}


@dataclasses.dataclass(frozen=True, order=True)
class Logged:
    event: str
    level: str  # "warning", "error"
    path: str
    line: int


def without_comments(text: str) -> str:
    """The same text with spaces in the place of comments; strings stay."""
    return re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/',
                  lambda match: match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0]), text, flags=re.S)


def arguments(text: str, at: int) -> list[str]:
    """The arguments of the call whose bracket opens before `at`."""
    found, depth, begin = [], 1, at
    for match in re.compile(r'"(?:\\.|[^"\\\n])*"|[(){}\[\],]').finditer(text, at):
        mark = match[0]
        if mark in "({[":
            depth += 1
        elif mark in ")}]":
            depth -= 1
        if depth == 0 or (mark == "," and depth == 1):
            found.append(text[begin:match.start()].strip())
            begin = match.end()
        if depth == 0:
            return found
    raise ValueError(f"a call that does not end: {text[at:at + 80]!r}")


def levels_of(name: str, level: str) -> set[str]:
    """At which levels, of warning and error, a call of Log<name> may log."""
    if name != "Event":
        return {name.lower()}
    named = {one.lower() for one in re.findall(r"LogLevel::k(\w+)", level)}
    # A level that is a variable may be a warning.
    return named & {"warning", "error"} if named else {"warning"}


def calls(path: str, text: str, literals: dict[str, set[str]]) -> list[Logged]:
    """What a source logs as a warning or an error. ValueError: an event that cannot be known."""
    found = []
    text = without_comments(text)
    for match in _CALL.finditer(text):
        words = arguments(text, match.end())
        level, event = ("", words[0]) if match[1] != "Event" else (words[0], words[1])
        events = set(_EVENT.findall(event)) or literals.get(event, set())
        line = text.count("\n", 0, match.start()) + 1
        if not events:
            raise ValueError(f"{path}:{line}: expected a literal event, or one that INDIRECT in tools/docs/events.py finds; found {event}")
        found += [Logged(one, at, path, line) for one in events for at in levels_of(match[1], level)]
    return found


def sources(top: Path) -> dict[str, str]:
    return {str(path.relative_to(top)): path.read_text("utf-8") for folder in FOLDERS
            for suffix in ("cc", "h", "cu") for path in sorted((top / folder).rglob(f"*.{suffix}"))}


def logged(top: Path) -> list[Logged]:
    texts = {path: text for path, text in sources(top).items() if not path.startswith(_LOG_FOLDER)}
    whole = "\n".join(map(without_comments, texts.values()))
    literals = {words: set(pattern.findall(whole)) for words, pattern in INDIRECT.items()}
    found = [Logged(event, level, path, 0) for event, (level, path) in _OWN.items()]
    for path, text in texts.items():
        found += calls(path, text, literals)
    return sorted(found)


def by_event(top: Path) -> dict[str, list[Logged]]:
    found: dict[str, list[Logged]] = collections.defaultdict(list)
    for one in logged(top):
        found[one.event].append(one)
    return found


def cells_of(places: list[Logged]) -> tuple[str, str]:
    """The columns of docs/events.md that follow from the sources: the levels of an event, and which daemon logs it."""
    daemons = {one.path.split("/")[0].removesuffix("_daemon") for one in places}
    return " or ".join(sorted({one.level for one in places})), daemons.pop() if daemons in ({"sender"}, {"receiver"}) else "both"


def main() -> None:
    for event, places in by_event(Path(".")).items():
        print(event, *cells_of(places), *[f"{one.path}:{one.line}" for one in places])


if __name__ == "__main__":
    main()
