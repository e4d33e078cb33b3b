"""tools/real.sh engines without an engine: which passes count as torn or wrong, what is equal to a fresh engine, which
cells run, and the table."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import struct
import tempfile
import types
import unittest
from typing import Any
from unittest import mock

import torch

from tools.real.engines import check, draft_model, drafts, torn
from tools.real.engines.cells import CONFIGURATIONS, Configuration, chosen
from tools.real.engines.check import cell_names
from tools.real.engines.model import CHANGED_SHARE, trained_weights, write_checkpoint
from tools.real.engines.observation import Observation, Sample, difference
from tools.real.engines.results import Result
from tools.real.engines.scene import CheckFailed
from tools.real.engines.steps import Tally, steps_of
from tools.real.engines.traffic import Traffic
from tools.real.engines.vllm_draft_run import Observation as OfDrafts
from tools.real.engines.vllm_draft_run import differences, published
from tools.real.environment import Environment
from tools.real.server import Server

# Two versions, a request of two steps.
OLD = [(-1.0, -2.0, -3.0), (-4.0,)]
NEW = [(-1.5, -2.5, -3.5), (-4.5,)]


def logprobs(*values: float) -> list[dict[int, Any]]:
    """Logprobs in the form of vLLM, with the requested token first."""
    return [{7: types.SimpleNamespace(logprob=value), 9: None} for value in values]


class TallyTest(unittest.TestCase):
    def test_a_step_of_one_version_is_whole_after_a_step_of_another(self) -> None:
        tally = Tally([OLD, NEW])
        tally.add([OLD[0], NEW[1]])
        tally.add(NEW)
        self.assertEqual((tally.steps, tally.torn, tally.versions), (4, 0, {0, 1}))

    def test_a_step_of_both_versions_or_of_neither_is_torn(self) -> None:
        tally = Tally([OLD, NEW])
        tally.add([(-1.0, -2.0, -3.5), (-4.0,)])  # the prompt's tokens old, the sampled one new
        tally.add([OLD[0], (-4.25,)])
        self.assertEqual((tally.steps, tally.torn, tally.versions), (4, 2, {0}))

    def test_references_that_do_not_tell_versions_apart_are_refused(self) -> None:
        with self.assertRaisesRegex(ValueError, "step 0 does not tell the versions apart"):
            Tally([OLD, [(-1.5, -2.0, -3.5), (-4.5,)]])

    def test_the_step_of_the_prompt_includes_the_first_sampled_token(self) -> None:
        completion = types.SimpleNamespace(logprobs=logprobs(-3.0, -4.0))
        output = types.SimpleNamespace(
            prompt_logprobs=[None, *logprobs(-1.0, -2.0)], outputs=[completion]
        )
        self.assertEqual(steps_of(output), OLD)


NAMES = cell_names(["vllm", "sglang"])
VERSIONS = {"vllm": "0.32.0"}
SEEN = Observation(
    probe=(-1.0, -2.0),
    prompted=Sample((5, 6), (-1.0, -2.0), (-3.0,)),
    plain=Sample((7,), (-4.0,)),
    parameters={"tp0:a": "1f", "tp0:b": "2e"},
)
# A server as an engine's: answers any GET with {}, and any POST with text that is not JSON.
SERVER = """
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")
    def do_POST(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(b"Cache flushed.")
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""


class TornModeTest(unittest.TestCase):
    def test_a_mode_passes_with_commits_and_without_torn_passes(self) -> None:
        found = {"steps": 90, "commits": 12, "torn": 0, "versions": 2}
        self.assertEqual(torn.verdict(found), Result(True, "90 passes, 12 commits, 0 torn"))
        self.assertFalse(torn.verdict({**found, "torn": 1}).good)
        self.assertFalse(torn.verdict({**found, "commits": 0}).good)
        self.assertFalse(torn.verdict({**found, "versions": 1}).good)

    def test_each_mode_selects_its_model_runner(self) -> None:
        for name, mode in torn.VLLM_MODES.items():
            variables = mode.variables("/nowhere")
            is_v2 = name[:2] == "v2"
            self.assertEqual(variables["VLLM_USE_V2_MODEL_RUNNER"], "1" if is_v2 else "0")
            self.assertEqual(len(mode.module_paths()), int(is_v2))


class DraftTest(unittest.TestCase):
    def test_each_step_changes_each_tensor_of_target_and_draft(self) -> None:
        for name, speculation in draft_model.SPECULATIONS.items():
            first, second = published(name, 1), published(name, 2)
            self.assertEqual(first.keys(), second.keys())
            self.assertEqual([n for n in first if first[n].equal(second[n])], [], name)
            own = [n for n in first if n.startswith(draft_model.PREFIX)]
            self.assertEqual(bool(own), speculation.draft is not None)

    def test_of_a_draft_that_stays_as_it_is_nothing_is_published(self) -> None:
        for name, mode in drafts.VLLM_MODES.items():
            one, other = (published(mode.speculation, step, mode.fixed) for step in (1, 2))
            target, own = draft_model.weights_of(mode.speculation, 2, draft_step=0)
            at_first = draft_model.weights_of(mode.speculation, 0)
            follows = [n for n in one if n.startswith((draft_model.PREFIX, draft_model.MTP))]
            self.assertEqual(bool(follows), not mode.fixed, name)
            self.assertEqual("--fixed" in mode.command(), mode.fixed)
            # So a fresh engine gets the target's tensors as they are published, and the draft's of step 0.
            changed = [n for n, tensor in target.items() if not tensor.equal(other[n] if n in other else at_first[0][n])]
            self.assertEqual(changed, [] if mode.fixed else [n for n in target if n.startswith(draft_model.MTP)])
            self.assertEqual([n for n in own if not own[n].equal(at_first[1][n])], [])

    def test_each_difference_from_a_fresh_engine_is_named(self) -> None:
        seen = OfDrafts([[7, 8]], [[-1.0, -2.0]], [3, 1], 9, {"target a": "1f", "draft b": "2f"})
        self.assertEqual(differences(seen, seen), [])
        for field, value, why in (
            ("tokens", [[7, 9]], "tokens"),
            ("logprobs", [[-1.0, -2.0000001]], "logprobs"),
            ("accepted", [3, 0], "accepted .3, 0., expected .3, 1."),
            ("drafts", 8, "drafts 8, expected 9"),
            ("parameters", {"target a": "1f", "draft b": "3f"}, "1 of 2 parameters differ: draft b"),
            ("parameters", {"target a": "1f"}, "1 of 2 parameters differ: draft b"),
        ):
            found = differences(dataclasses.replace(seen, **{field: value}), seen)
            self.assertEqual(len(found), 1)
            self.assertRegex(found[0], why)


class ObservationTest(unittest.TestCase):
    def test_equal_observations_have_no_difference(self) -> None:
        self.assertIsNone(difference(SEEN, dataclasses.replace(SEEN)))

    def test_each_part_that_differs_is_named(self) -> None:
        plain = dataclasses.replace(SEEN.plain, tokens=(8,))
        prompted = dataclasses.replace(SEEN.prompted, prompt_logprobs=(-3.0000001,))
        for found, why in (
            (dataclasses.replace(SEEN, probe=(-1.0, -2.5)), "a pass computed"),
            (dataclasses.replace(SEEN, plain=plain), "plain request: tokens"),
            (dataclasses.replace(SEEN, prompted=prompted), "prompted request: prompt_logprobs"),
            (dataclasses.replace(SEEN, parameters={"tp0:a": "1f", "tp0:b": "2f"}), "1 of 2 .* tp0:b"),
            (dataclasses.replace(SEEN, parameters={"tp0:a": "1f"}), "of one engine only: tp0:b"),
        ):
            self.assertRegex(difference(found, SEEN) or "", why)
        nothing = dataclasses.replace(SEEN, parameters={})
        self.assertEqual(difference(nothing, nothing), "the engine named no parameters")


class TrafficTest(unittest.TestCase):
    def test_a_pass_of_no_version_is_wrong_and_a_request_that_fails_is_made_again(self) -> None:
        answers: list[Any] = [(-1.0,), OSError("the engine is gone"), (-2.0,), (-1.5,)]

        class Engine:
            def probe(self) -> Any:
                answer = answers.pop(0) if answers else (-1.0,)
                if isinstance(answer, Exception):
                    raise answer
                return answer

        engine: Any = Engine()
        with Traffic(lambda: engine, [(-1.0,), (-2.0,)]) as traffic:
            traffic.await_passes(4, 20)
        self.assertEqual((traffic.wrong, traffic.failures, traffic.seen), (1, 1, {0, 1}))
        self.assertEqual(traffic.first_wrong, (-1.5,))


class CellsTest(unittest.TestCase):
    def test_the_default_has_every_engine_and_model_and_is_not_all(self) -> None:
        wanted = chosen(NAMES, None, False)
        for one in CONFIGURATIONS:
            if one.engine != "vllm-v2" and one.ranks == 1:
                self.assertIn(f"{one.name}/{one.checks[0]}", wanted)
        self.assertLess(len(wanted), len(NAMES))
        self.assertEqual(chosen(NAMES, None, True), NAMES)

    def test_patterns_choose(self) -> None:
        self.assertEqual(chosen(NAMES, ["sglang/qwen2/tp1/pl*"], False), ["sglang/qwen2/tp1/plugin"])


class RunTest(unittest.TestCase):
    ONE = Configuration("vllm-v1", "qwen3", 1)
    CHECKS = ["extension", "kill-sender", "transfer", "follow-keep", "follow-kill-receiver"]

    def run_checks(self, minutes: float) -> check.Run:
        followed = mock.MagicMock()
        followed.__enter__.return_value.check_mode = lambda mode: f"paused by {mode}"
        followed.__enter__.return_value.check_kill.side_effect = CheckFailed("2 wrong")
        followed.__enter__.return_value.logs = str
        run = check.Run([], "/nowhere", 1.0, minutes)
        with mock.patch.multiple(
            check,
            Scene=mock.Mock(return_value=mock.Mock(configuration=self.ONE)),
            LiveEngine=mock.Mock(side_effect=RuntimeError("no engine")),
            check_transfer=lambda scene: "moved",
            FollowedEngine=mock.Mock(return_value=followed),
        ), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run.configuration(self.ONE, Environment("/nowhere", "vllm"), list(self.CHECKS))
        return run

    def test_an_engine_that_does_not_start_fails_its_checks_and_no_others(self) -> None:
        found = self.run_checks(minutes=1.0).results
        self.assertEqual(
            {name.rpartition("/")[2]: result for name, result in found.items()},
            {
                "extension": Result(False, "not begun: no engine"),
                "kill-sender": Result(False, "not begun: no engine"),
                "transfer": Result(True, "moved"),
                "follow-keep": Result(True, "paused by keep"),
                "follow-kill-receiver": Result(False, "CheckFailed: 2 wrong"),
            },
        )

    def test_no_check_begins_after_the_time_is_over(self) -> None:
        self.assertEqual(self.run_checks(minutes=-1.0).results, {})


class ModelTest(unittest.TestCase):
    def test_every_tensor_changes_from_step_to_step_in_some_elements(self) -> None:
        for kind in ("llama", "qwen3-moe"):
            one, other = trained_weights(kind, 1), trained_weights(kind, 2)
            self.assertEqual(one.keys(), other.keys())
            for name, tensor in one.items():
                share = float((tensor != other[name]).float().mean())
                self.assertGreater(share, 0, name)
                self.assertLess(share, 8 * CHANGED_SHARE, name)

    def test_a_checkpoint_has_the_weights_as_they_are(self) -> None:
        for kind, in_fp32 in (("qwen2", 0), ("glm4-moe", 1)):
            weights = trained_weights(kind, 1)
            with tempfile.TemporaryDirectory() as folder:
                write_checkpoint(folder, kind, weights)
                with open(os.path.join(folder, "model.safetensors"), "rb") as file:
                    content = file.read()
            (size,) = struct.unpack("<Q", content[:8])
            header = json.loads(content[8 : 8 + size])
            self.assertEqual(set(header), {"__metadata__", *weights})
            self.assertEqual(sum(header[name]["dtype"] == "F32" for name in weights), in_fp32)
            for name, tensor in weights.items():
                begin, end = header[name]["data_offsets"]
                bits = tensor.view(torch.int32 if header[name]["dtype"] == "F32" else torch.int16).numpy().tobytes()
                self.assertEqual(content[8 + size + begin : 8 + size + end], bits, name)


class ServerTest(unittest.TestCase):
    def test_a_server_is_ready_when_it_answers_and_is_gone_after_its_end(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            server = Server(["-c", SERVER], {}, "/ready", log=log)
            self.assertEqual(server.get("/ready"), {})
            self.assertIsNone(server.post("/flush_cache", {}))
            server.end()
            self.assertIsNone(server.get("/ready"))
            with self.assertRaises(ProcessLookupError):
                os.kill(server.pid, 0)

    def test_a_server_that_does_not_start_says_why(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(RuntimeError, "does not listen, status 3:\nno such model"):
                failing = "import sys; print('no such model'); sys.exit(3)"
                Server(["-c", failing], {}, "/ready", log=os.path.join(folder, "log"))


if __name__ == "__main__":
    unittest.main()
