"""The page at /: what its sources may have in them, and how they become one file."""

from __future__ import annotations

import base64
import hashlib
import re
import unittest
from pathlib import Path

from common.service.http.page.embed import join, policy_of

PAGE = Path("common/service/http/page")
HTML, STYLE, VIEW, DRAW = ((PAGE / name).read_text("utf-8") for name in ("page.html", "page.css", "view.js", "page.js"))
SCRIPT = VIEW + DRAW


class SourcesTest(unittest.TestCase):
    def test_there_is_no_address_in_it_and_nothing_is_loaded(self) -> None:
        page = join(HTML, STYLE, SCRIPT)
        self.assertIsNone(re.search(r"\w+://|[\"'(=]//\w", page))
        self.assertEqual(set(re.findall(r'(?:href|src|action)="([^"]*)"', page)), {"data:,", "readyz", "status", "metrics"})
        self.assertNotRegex(page, r"@import|url\(|import\s*\(|\bimport\b.*\bfrom\b|importScripts|sendBeacon|WebSocket|EventSource|XMLHttp")
        self.assertEqual(re.findall(r"\bfetch\(([^,]*),", page), ['"status"'])

    def test_texts_of_a_status_never_become_markup_or_code(self) -> None:
        sinks = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|createContextualFragment|DOMParser|srcdoc"
        self.assertNotRegex(SCRIPT, sinks)
        self.assertNotRegex(HTML, r"\son\w+=|\sstyle=|javascript:")
        # What a text may be put into, besides text nodes: attributes that neither load nor run anything.
        names = set(re.findall(r'setAttribute\((name|[`"][^,]*),', SCRIPT))
        self.assertEqual(names, {"name", '"d"', '"fill-rule"', '"href"', '"aria-labelledby"', '"aria-pressed"', "`aria-value${name}`"})

    def test_each_field_that_it_reads_is_one_of_the_status(self) -> None:
        protos = "".join((Path("proto") / f"{name}.proto").read_text("utf-8") for name in ("admin", "sender_status", "receiver_status", "delta"))
        fields = set(re.findall(r"^\s+(?:repeated |optional )?[\w.<>, ]+ (\w+) = \d+", protos, re.M))
        read = set(re.findall(r"\.([a-z]+(?:_[a-z]+)+)\b", VIEW))
        self.assertGreater(len(read), 60)
        self.assertEqual(read - fields, set())

    def test_each_section_that_it_names_is_in_the_document(self) -> None:
        table = re.search(r"const SECTIONS = \{(.*?)\};", VIEW, re.S)
        assert table is not None
        named = set(re.findall(r'"([^"]+)"', table[1])) | set(re.findall(r'section: "(\w[^"]+)"', DRAW))
        self.assertGreater(len(named), 10)
        headings = set(re.findall(r"^#+ (.+)$", Path("docs/runbook.md").read_text("utf-8"), re.M))
        self.assertEqual(named - headings, set())
        for name in re.findall(r"^  (\w+):|, (\w+): \"", table[1], re.M):
            self.assertTrue(f"SECTIONS.{''.join(name)}" in VIEW, f"nothing names the section {''.join(name)}")


class ColoursTest(unittest.TestCase):
    def test_each_text_can_be_read_in_light_and_in_dark(self) -> None:
        blocks = re.findall(r":root \{(.*?)\}", STYLE, re.S)
        self.assertEqual(len(blocks), 2)
        for block in blocks:
            colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
            for text in ("ink", "quiet", "accent", "good", "warn", "bad", "wait"):
                for ground in ("ground", "card"):
                    with self.subTest(text=text, ground=ground, value=colours[text]):
                        self.assertGreaterEqual(contrast(colours[text], colours[ground]), 4.5)
            for mark in ("accent", "part0", "part1", "part2", "part3"):
                self.assertGreaterEqual(contrast(colours[mark], colours["card"]), 3, mark)


def contrast(one: str, other: str) -> float:
    """The ratio of two colours as WCAG 2 defines it: 4.5 is enough for text, 3 for parts of a drawing."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4) for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


class EmbedTest(unittest.TestCase):
    def test_the_policy_names_the_hashes_of_what_is_in_the_page(self) -> None:
        page = join(HTML, STYLE, SCRIPT)
        policy = dict(part.split(" ", 1) for part in policy_of(STYLE, SCRIPT).split("; "))
        for tag, directive in (("style", "style-src"), ("script", "script-src")):
            (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            self.assertEqual(policy[directive], f"'sha256-{digest}'")
        self.assertEqual((policy["default-src"], policy["connect-src"]), ("'none'", "'self'"))
        self.assertNotIn("unsafe", " ".join(policy.values()))

    def test_sources_that_cannot_be_one_page_are_refused(self) -> None:
        html = "<!-- style --><!-- script -->"
        self.assertEqual(join(html, "a", "b"), "<style>a</style><script>b</script>")
        for arguments, why in (
            (("<!-- style -->", "a", "b"), "0 places for the script"),
            ((html + html, "a", "b"), "2 places for the style"),
            ((html, "a", "'</SCRIPT>'"), "the script contains </script"),
            ((html, "</style", "b"), "the style contains </style"),
            ((html, "a", ')dws_page"'), "raw string"),
        ):
            with self.subTest(why), self.assertRaisesRegex(ValueError, why):
                join(*arguments)


if __name__ == "__main__":
    unittest.main()
