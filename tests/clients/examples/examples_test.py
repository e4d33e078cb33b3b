"""The programs of clients/examples without torch or an engine: they parse, their options and those of the daemons that they
start exist, and docs/quickstart runs them as they are. tools/real.sh quickstart runs them for real."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import unittest
from pathlib import Path

import dws
from tests.tools.docs_blocks import Block, blocks_of

TOP = Path("WORKSPACE").resolve().parent
PROGRAMS = sorted((TOP / "clients/examples").glob("*.py"))
SCRIPTS = sorted((TOP / "clients/examples").glob("*.sh"))
QUICKSTARTS = sorted((TOP / "docs/quickstart").glob("*.md"))
DAEMONS = {"sender": "sender_daemon/dws-sender", "receiver": "receiver_daemon/dws-receiver"}
OLDEST_PYTHON = (3, 10)


@functools.cache
def flags_of(daemon: str) -> frozenset[str]:
    done = subprocess.run([DAEMONS[daemon], "--help"], capture_output=True, text=True, timeout=60, check=True)
    return frozenset(re.findall(r"(?<![\w-])--[a-z][\w-]*", done.stdout))


def parse(program: Path) -> ast.Module:
    return ast.parse(program.read_text(), str(program), feature_version=OLDEST_PYTHON)


def calls(program: Path, name: str) -> list[ast.Call]:
    """The calls of a function or method whose dotted name ends with `name`."""
    return [node for node in ast.walk(parse(program))
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(name)]


def arguments_of(program: Path) -> dict[str, list[str]]:
    """The arguments that it takes, with their choices; those without -- are positional."""
    found = {}
    for call in calls(program, ".add_argument"):
        choices = [ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg == "choices"]
        found[ast.literal_eval(call.args[0])] = list(choices[0]) if choices else []
    return found


def wrong_words(program: Path, words: list[str]) -> list[str]:
    """Those of a command line that the program does not take."""
    known = arguments_of(program)
    wrong = [word for word in words if word.startswith("--") and word.partition("=")[0] not in known]
    role = known.get("role")
    if role is not None and (not words or words[0] not in role):
        wrong.append(f"role {words[:1]}")
    return wrong


class ExamplesTest(unittest.TestCase):
    def test_each_program_parses_and_says_how_it_is_run(self) -> None:
        self.assertGreaterEqual(len(PROGRAMS), 4)
        for program in PROGRAMS:
            with self.subTest(program.name):
                described = ast.get_docstring(parse(program)) or ""
                if arguments_of(program):
                    self.assertIn(f"{program.name} ", described)

    def test_each_role_is_run_in_the_description(self) -> None:
        for program in PROGRAMS:
            for role in arguments_of(program).get("role", []):
                self.assertIn(f"{program.name} {role}", ast.get_docstring(parse(program)) or "")

    def test_daemons_take_the_options_that_programs_give_them(self) -> None:
        seen = 0
        for program in PROGRAMS:
            for daemon in DAEMONS:
                parameters = set(inspect.signature(getattr(dws.daemons, daemon)).parameters)
                for call in calls(program, f"daemons.{daemon}"):
                    for keyword in call.keywords:
                        with self.subTest(program.name, option=keyword.arg):
                            assert keyword.arg is not None
                            flag = "--" + keyword.arg.replace("_", "-")
                            self.assertTrue(keyword.arg in parameters or flag in flags_of(daemon), flag)
                            seen += 1
        self.assertGreater(seen, 5)

    def test_daemons_take_the_options_that_scripts_give_them(self) -> None:
        for script in SCRIPTS:
            text = re.sub(r"\\\n", " ", script.read_text())
            self.assertEqual(subprocess.run(["bash", "-n", script], check=False).returncode, 0)
            commands = re.findall(r"(?m)^dws-(sender|receiver) (.*)$", text)
            self.assertTrue(commands, script.name)
            for daemon, words in commands:
                self.assertLessEqual(set(re.findall(r"(?<![\w-])--[a-z][\w-]*", words)), flags_of(daemon))


class QuickstartsTest(unittest.TestCase):
    def commands(self, page: Path) -> list[tuple[Block, list[str]]]:
        return [(block, words) for block in blocks_of(page, TOP) for words in block.commands()]

    def test_each_has_one_screen_or_two_and_names_its_programs(self) -> None:
        self.assertGreaterEqual(len(QUICKSTARTS), 4)
        linked: set[str] = set()
        for page in QUICKSTARTS:
            text = page.read_text()
            programs = set(re.findall(r"\(\.\./\.\./clients/examples/([\w.]+)\)", text))
            with self.subTest(page.name):
                self.assertTrue(programs)
                self.assertGreaterEqual(len(text.splitlines()), 60)
                self.assertLessEqual(len(text.splitlines()), 80)
            linked |= programs
        self.assertEqual(linked, {program.name for program in (*PROGRAMS, *SCRIPTS)})

    def test_readme_lists_them_in_order(self) -> None:
        listed = re.findall(r"\(docs/quickstart/(\w+\.md)\)", (TOP / "README.md").read_text())
        self.assertEqual(listed, [page.name for page in QUICKSTARTS])

    def test_programs_take_the_arguments_of_each_command(self) -> None:
        ran: set[str] = set()
        for page in QUICKSTARTS:
            for block, words in self.commands(page):
                for program in PROGRAMS:
                    if program.name in words:
                        after = words[words.index(program.name) + 1:]
                        self.assertEqual(wrong_words(program, after), [], f"{block}: {words}")
                        ran |= {f"{program.name} {word}" for word in after[:1]}
        for program in PROGRAMS:
            for role in arguments_of(program).get("role", []):
                self.assertIn(f"{program.name} {role}", ran, "no quickstart runs it")

    def test_a_wrong_argument_is_found(self) -> None:
        program = TOP / "clients/examples/train_fsdp2.py"
        self.assertEqual(wrong_words(program, ["train", "--steps=3", "--device", "cuda"]), [])
        self.assertEqual(wrong_words(program, ["train", "--stops=3"]), ["--stops=3"])
        self.assertEqual(wrong_words(program, ["trian"]), ["role ['trian']"])

    def test_sockets_are_those_of_the_programs(self) -> None:
        folders = {}
        for program in PROGRAMS:
            found = re.search(r'^JOB = "(.*)"$(?:.*\n)*?RUN_DIR = "(.*?)"', program.read_text(), re.M)
            if found:
                folders[f"{found[2]}/{found[1]}"] = program.name
        for script in SCRIPTS:
            folders.update({run: script.name for run in re.findall(r"\brun=(/\S+)", script.read_text())})
        seen = 0
        for page in QUICKSTARTS:
            for path in re.findall(r"--(?:socket|run-dir)[= ](/tmp/\S+)", page.read_text()):
                seen += 1
                self.assertTrue([folder for folder in folders if path == folder or path.startswith(f"{folder}/")], path)
        self.assertGreaterEqual(seen, 4)


if __name__ == "__main__":
    unittest.main()
