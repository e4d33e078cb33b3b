"""Makes text from outside safe to print, as the daemons do (common/base/printable.h)."""

from __future__ import annotations

import unicodedata

# Cc and Cf: controls, direction marks, invisible joiners. Zl, Zp: line and paragraph separators.
# Cs: bytes that were not UTF-8.
_UNPRINTABLE = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs"})


def printable(text: str) -> str:
    """`text` with all that a terminal or a log could interpret escaped, as "\\x1b" or "\\u202e"."""
    if text.isprintable():
        return text
    return "".join(
        character if unicodedata.category(character) not in _UNPRINTABLE else _escaped(character)
        for character in text
    )


def _escaped(character: str) -> str:
    value = ord(character)
    if value <= 0xFF:
        return f"\\x{value:02x}"
    return f"\\u{value:04x}" if value <= 0xFFFF else f"\\U{value:08x}"
