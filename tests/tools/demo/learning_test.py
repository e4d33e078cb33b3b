"""The demo's parts that need no daemon: options, task, policy, learner, inbox."""

import contextlib
import io
import multiprocessing
import time
import unittest
from unittest import mock

import numpy as np
import torch

from tools.demo import options, task
from tools.demo.inbox import EngineGone, Inbox, as_batch
from tools.demo.learner import Learner
from tools.demo.policy import Policy, PolicyConfig, sample
from tools.demo.rollout_engine import Rollout, flip_one_bit
from tools.demo.weights_hash import weights_sha256

SMALL = PolicyConfig(task.VOCABULARY, task.CONTEXT, width=32, layers=2, heads=4)


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(1)


class OptionsTest(unittest.TestCase):
    def test_ranks_that_cannot_share_the_policy_are_refused_by_name(self) -> None:
        for flags, why in (
            (["--engine-tp=3"], "--engine-tp must divide the policy's 8 attention heads"),
            (["--trainer=fsdp2"], "--trainer fsdp2 needs --ranks 2 or more"),
        ):
            said = io.StringIO()
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(said):
                options.parse(flags)
            self.assertIn(why, said.getvalue())

    def test_fsdp2_without_a_python_that_has_it_says_what_is_needed(self) -> None:
        needed = "torch 2.6 or newer .*, numpy, grpcio and protobuf"
        for python, why in (
            ("", f"needs a Python with {needed}.* --python or DWS_TRAINERS_PYTHON"),
            ("/no/python", f"^/no/python .*expected a Python with {needed}, found: No such file"),
            ("/bin/false", f"^/bin/false .*expected a Python with {needed}, found"),
        ):
            with mock.patch.object(options.importlib, "import_module", side_effect=ImportError):
                with self.assertRaisesRegex(SystemExit, why):
                    options.run_with_fsdp2(python, [])


class TaskTest(unittest.TestCase):
    def test_rewards_are_the_share_of_right_digits(self) -> None:
        question = torch.tensor([[3, 1, 2, 9, 0, task.START]])
        self.assertEqual(task.solutions(question).tolist(), [[0, 1, 2, 3, 9]])
        self.assertEqual(task.rewards(question, task.solutions(question)).item(), 1)
        answer = torch.tensor([[0, 1, 2, 9, 3]])
        self.assertAlmostEqual(task.rewards(question, answer).item(), 0.6)

    def test_the_requested_share_of_demonstrations_is_wrong(self) -> None:
        questions = task.prompts(2000, generator())
        answers = task.demonstrations(questions, 0.25, generator())
        right = (answers == task.solutions(questions)).all(1).float().mean().item()
        self.assertAlmostEqual(right, 0.75, delta=0.04)


class PolicyTest(unittest.TestCase):
    def test_sampling_with_a_cache_gives_the_same_logprobs_as_without(self) -> None:
        torch.manual_seed(0)
        policy = Policy(SMALL)
        questions = task.prompts(8, generator())
        answers, logprobs = sample(policy, questions, task.DIGITS, generator())
        logits = policy(torch.cat([questions, answers[:, :-1]], 1))[:, task.PROMPT_LENGTH - 1 :]
        wanted = logits.log_softmax(-1).gather(2, answers[:, :, None])[:, :, 0]
        torch.testing.assert_close(logprobs, wanted.detach(), rtol=1e-4, atol=1e-5)

    def test_one_flipped_bit_changes_the_hash(self) -> None:
        policy = Policy(SMALL).to(torch.bfloat16)
        before = weights_sha256(policy.named_parameters())
        self.assertEqual(before, weights_sha256(reversed(list(policy.named_parameters()))))
        flip_one_bit(policy)
        self.assertNotEqual(before, weights_sha256(policy.named_parameters()))


class LearnerTest(unittest.TestCase):
    def test_a_seed_gives_the_same_weights(self) -> None:
        hashes = set()
        for _ in range(2):
            learner = Learner(lambda: Policy(SMALL), seed=3)
            learner.warm_up(3, lambda step, loss: None)
            hashes.add(weights_sha256(learner.weights().items()))
        self.assertEqual(len(hashes), 1)

    def test_learning_makes_rewarded_answers_more_likely(self) -> None:
        learner = Learner(lambda: Policy(SMALL), seed=3)
        question = task.prompts(1, generator()).repeat(2, 1)
        answers = torch.stack([task.solutions(question)[0], torch.full((task.DIGITS,), 7)])
        before = learner._logprobs(question, answers).sum(1).detach()
        for _ in range(30):
            behaviour = learner._logprobs(question, answers).detach()
            learner.improve(question, answers, behaviour, group_size=2)
        after = learner._logprobs(question, answers).sum(1).detach()
        self.assertGreater((after - before)[0].item(), (after - before)[1].item())


def rollout(version: int, token: str) -> Rollout:
    questions = task.prompts(4, generator()).numpy()
    answers = np.zeros((4, task.DIGITS), np.int64)
    return Rollout("a", version, token, 0.0, questions, answers, np.zeros((4, task.DIGITS)))


class InboxTest(unittest.TestCase):
    def setUp(self) -> None:
        self.ours, self.theirs = multiprocessing.Pipe()
        self.inbox = Inbox([self.ours], {1: "one", 2: "two"})

    def test_only_published_pairs_are_accepted(self) -> None:
        for message in (rollout(1, "one"), rollout(1, "two"), rollout(3, "two"), rollout(2, "two")):
            self.theirs.send(message)
        taken = self.inbox.take(2, 1, 20)
        self.assertEqual([r.version for r in taken], [1, 2])
        self.assertEqual((self.inbox.accepted, self.inbox.rejected), (2, 2))
        self.assertEqual(as_batch(taken)[0].shape, (8, task.PROMPT_LENGTH))

    def test_old_rollouts_are_not_taken(self) -> None:
        self.theirs.send(rollout(1, "one"))
        with self.assertRaises(TimeoutError):
            self.inbox.take(1, 2, 0.2)

    def test_an_engine_that_ends_is_detected(self) -> None:
        started = time.monotonic()
        self.theirs.close()
        with self.assertRaises(EngineGone):
            self.inbox.take(1, 1, 20)
        self.assertLess(time.monotonic() - started, 15)


if __name__ == "__main__":
    unittest.main()
