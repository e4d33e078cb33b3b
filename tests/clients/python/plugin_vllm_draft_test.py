"""dws.vllm and a draft model, in a stand-in for vLLM, against a stand-in for the receiver: both models are one engine."""

from __future__ import annotations

import os
import tempfile
import types
import unittest
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterable, Optional

import torch

import dws
import dws.vllm
from tests.clients.python.engine_models import PaddedModel, checkpoint, save_checkpoint
from tests.clients.python.fake_daemons import resume
from tests.clients.python.vllm_case import SMALL, VllmCase, config, step

HIDDEN = SMALL.hidden_size
SHARED = ("model.embed_tokens", "lm_head")


class Head(torch.nn.Module):
    """A draft in the form of EAGLE: the target's embedding and lm_head, and layers of its own.

    Attributes:
      names: by parameter, the name in a checkpoint.
    """

    names = {"model.fc.weight": "fc.weight", "model.layers.0.norm.weight": "layers.0.norm.weight"}

    def __init__(self, target: Any) -> None:
        super().__init__()
        random = torch.Generator().manual_seed(9)
        self.model = torch.nn.Module()
        self.model.embed_tokens = target.model.embed_tokens
        self.model.fc = torch.nn.Linear(2 * HIDDEN, HIDDEN, bias=False, dtype=torch.bfloat16)
        self.model.fc.weight.data.copy_(torch.randn(HIDDEN, 2 * HIDDEN, generator=random))
        self.model.layers = torch.nn.ModuleList([torch.nn.Module()])
        self.model.layers[0].norm = torch.nn.Module()
        norm = torch.nn.Parameter(torch.randn(HIDDEN, generator=random).to(torch.bfloat16), requires_grad=False)
        self.model.layers[0].norm.register_parameter("weight", norm)
        self.lm_head = target.lm_head

    def load_weights(self, weights: Iterable[tuple[str, Any]]) -> None:
        own = dict(self.named_parameters())
        parameters = {canonical: own[name] for name, canonical in self.names.items()}
        for name, loaded in weights:
            if name in parameters:
                parameters[name].data.copy_(loaded)

    def tensors(self) -> dict[str, Any]:
        """Its own, by the names of a checkpoint."""
        own = dict(self.named_parameters())
        return {canonical: own[name].detach().clone() for name, canonical in self.names.items()}


class InTarget(Head):
    """A draft whose weights the target's checkpoint has: MTP."""

    names = {"model.fc.weight": "model.layers.1.eh_proj.weight", "model.layers.0.norm.weight": "model.layers.1.norm.weight"}


class OfFewTokens(Head):
    """A draft in the form of EAGLE-3: an lm_head for tokens of its own, and a table that says which ones these are."""

    names = {**Head.names, "lm_head.weight": "lm_head.weight", "draft_id_to_target_id": "d2t"}

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        random = torch.Generator().manual_seed(10)
        self.lm_head = torch.nn.Linear(HIDDEN, 6, bias=False, dtype=torch.bfloat16)
        self.lm_head.weight.data.copy_(torch.randn(6, HIDDEN, generator=random))
        self.draft_id_to_target_id = torch.nn.Parameter(torch.tensor([1, 1, 2, 3, 5, 8]), requires_grad=False)


class Skipping(PaddedModel):
    """A target that loads nothing of the layers behind its last one."""

    def load_weights(self, weights: Any) -> None:
        super().load_weights({n: w for n, w in dict(weights).items() if not n.startswith("model.layers.1.")})


def _rebuild(model: Any) -> None:
    """A hook of the class Head."""


class DraftTest(VllmCase):
    def setUp(self) -> None:
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.target, self.own = os.path.join(folder.name, "target"), os.path.join(folder.name, "draft")
        os.mkdir(self.target)
        os.mkdir(self.own)

    def speculating(self, kind: Any = Head, method: str = "eagle", settings: Any = None, **more: Any) -> Any:
        """A worker with a draft of this kind, whose weights are in a checkpoint."""
        changed = config()
        vars(changed).update(settings or {})
        model = Skipping(SMALL, 0, 1)
        weights = checkpoint(SMALL, seed=1)
        model.load_weights(weights)
        draft = kind(model)
        here = self.target if kind is InTarget else self.own
        own = draft.tensors()
        save_checkpoint(os.path.join(self.target, "model.safetensors"), {**weights, **(own if kind is InTarget else {})})
        if kind is not InTarget:
            save_checkpoint(os.path.join(self.own, "model.safetensors"), own)
        changed.make_model = lambda rank: model
        changed.model_config.model = self.target
        loaded = types.SimpleNamespace(model=here)
        changed.speculative_config = types.SimpleNamespace(method=method, draft_model_config=loaded, **more)
        worker = self.worker(changed)
        worker.worker.model_runner.get_draft_model = lambda: draft
        return worker

    def attach(self, worker: Any, **options: Any) -> dict[str, Any]:
        """Returns the sources of what is attached, by the engine's names."""
        worker.execute_method("dws_attach", socket=self.receiver.socket, **options)
        self.addCleanup(worker.worker._dws_attached.close)
        found: dict[str, list[str]] = {}
        for view in self.receiver.attached.views:
            found.setdefault(view.engine_name, []).append(view.tensor)
        return found

    def refused(self, worker: Any, error: Any, message: str, **options: Any) -> None:
        with self.assertRaisesRegex(error, message):
            worker.execute_method("dws_attach", socket=self.receiver.socket, **options)
        self.assertIsNone(self.receiver.attached)
        self.assertIsNotNone(step(worker).logits)

    def test_a_draft_with_a_checkpoint_of_its_own_is_attached_with_its_target(self) -> None:
        worker = self.speculating()
        with self.assertLogs("vllm.dws", "INFO") as logged:
            found = self.attach(worker, draft="follow", draft_prefix="draft.")
        self.assertEqual(found["draft.model.fc.weight"], ["draft.fc.weight"])
        self.assertEqual(found["draft.model.layers.0.norm.weight"], ["draft.layers.0.norm.weight"])
        self.assertEqual(found["model.layers.0.self_attn.o_proj.weight"], ["model.layers.0.self_attn.o_proj.weight"])
        self.assertEqual([name for name in found if name.startswith("draft.") and name.rpartition(".")[0][6:] in SHARED], [])
        says = "of the draft model Head, with 2 shared tensors: no table is asked, load_weights alone says it of 2: model.fc"
        self.assertIn(says, logged.output[0])

    def test_a_table_of_the_drafts_tokens_is_followed_and_its_own_lm_head_is_not_the_targets(self) -> None:
        found = self.attach(self.speculating(OfFewTokens, "eagle3"), draft="follow", draft_prefix="draft.")
        self.assertEqual(found["draft.draft_id_to_target_id"], ["draft.d2t"])
        self.assertEqual(found["draft.lm_head.weight"], ["draft.lm_head.weight"])
        self.assertIn(["lm_head.weight"], found.values())
        table = next(view for view in self.receiver.attached.views if view.tensor == "draft.d2t")
        self.assertEqual((table.dtype, list(table.shape)), (dws.DType.I64.value, [6]))

    def test_one_commit_is_of_both_and_of_what_they_share(self) -> None:
        worker = self.speculating()
        self.attach(worker, draft="follow", draft_prefix="draft.")
        draft, target = worker.worker.model_runner.get_draft_model(), worker.worker.model_runner.get_model()
        memory = memoryview(self.receiver.writable_region())
        views = {view.tensor: view for view in self.receiver.attached.views}
        for name, live in (
            ("draft.fc.weight", draft.model.fc.weight),
            ("model.embed_tokens.weight", draft.model.embed_tokens.weight),
            ("model.embed_tokens.weight", target.model.embed_tokens.weight),
        ):
            begin = views[name].offset_bytes
            memory[begin : begin + 2] = b"\x80\x40"  # 4.0
            self.assertEqual(float(live.detach().reshape(-1)[0]), 4.0, name)
            memory[begin : begin + 2] = b"\x00\x00"
        self.assertIs(draft.lm_head.weight, target.lm_head.weight)

    def test_layers_in_the_checkpoint_of_the_target_keep_their_names(self) -> None:
        found = self.attach(self.speculating(InTarget, "mtp"), draft="follow")
        self.assertEqual(found["draft.model.fc.weight"], ["model.layers.1.eh_proj.weight"])
        self.receiver.attached = None
        message = "draft_prefix is 'x.', .* in the target's checkpoint"
        self.refused(self.speculating(InTarget, "mtp"), dws.LayoutError, message, draft="follow", draft_prefix="x.")

    def test_without_a_decision_the_attach_is_refused(self) -> None:
        worker = self.speculating()
        self.refused(worker, dws.LayoutError, "draft model .method eagle.*draft='follow'.*draft_prefix=.*draft='fixed'")

    def test_a_fixed_draft_is_left_alone_but_for_what_it_shares(self) -> None:
        worker = self.speculating()
        draft = worker.worker.model_runner.get_draft_model()
        own, shared = draft.model.fc.weight.data_ptr(), draft.lm_head.weight.data_ptr()
        found = self.attach(worker, draft="fixed")
        self.assertEqual([name for name in found if name.startswith("draft.")], [])
        self.assertEqual(draft.model.fc.weight.data_ptr(), own)
        self.assertNotEqual(draft.lm_head.weight.data_ptr(), shared)  # it has moved with the target's

    def test_names_that_both_checkpoints_have_need_a_prefix(self) -> None:
        class Small(Head):
            names = {"model.layers.0.norm.weight": "model.norm.weight", "model.fc.weight": "fc.weight"}

        message = "checkpoint has 'model.norm.weight' as the target's.*draft_prefix"
        self.refused(self.speculating(Small), dws.LayoutError, message, draft="follow")

    def test_a_draft_that_differs_from_its_checkpoint_is_refused(self) -> None:
        worker = self.speculating()
        draft = worker.worker.model_runner.get_draft_model()
        draft.model.fc.weight.data[0, 0] += 1
        message = "differ from what checkpoint .*'draft.model.fc.weight' .draft.fc.weight"
        self.refused(worker, dws.LayoutError, message, draft="follow", draft_prefix="draft.")

    def test_a_parameter_of_which_load_weights_says_nothing_is_refused_or_the_engines_own(self) -> None:
        worker = self.speculating()
        draft = worker.worker.model_runner.get_draft_model()
        draft.map = torch.nn.Parameter(torch.arange(8), requires_grad=False)
        follow: dict[str, Any] = {"draft": "follow", "draft_prefix": "draft."}
        self.refused(worker, dws.LayoutError, "draft model Head: parameter 'map'.*copies nothing into it.*own", **follow)
        self.assertNotIn("draft.map", self.attach(worker, own=["draft.map"], **follow))

    def test_a_copy_of_a_weight_that_the_draft_holds_is_refused(self) -> None:
        worker = self.speculating()
        draft = worker.worker.model_runner.get_draft_model()
        draft.model.cast = draft.model.fc.weight.detach().float()
        message = "'draft.model.cast' .*copy of weight 'draft.model.fc.weight'"
        self.refused(worker, dws.LayoutError, message, draft="follow", draft_prefix="draft.")

    def test_a_hook_of_the_draft_excuses_no_copy_of_the_target(self) -> None:
        worker = self.speculating()
        target, draft = worker.worker.model_runner.get_model(), worker.worker.model_runner.get_draft_model()
        draft.model.cast = draft.model.fc.weight.detach().float()
        follow: dict[str, Any] = {"draft": "follow", "draft_prefix": "draft.", "hooks": {"Head": f"{__name__}:_rebuild"}}
        target.cast = target.model.norm.weight.detach().float()
        self.refused(worker, dws.LayoutError, "'cast' .*copy of weight 'model.norm.weight'", **follow)
        del target.cast
        with self.assertLogs("dws.held.watch", "WARNING") as logged:
            self.attach(worker, **follow)
        self.assertRegex(logged.output[0], "'draft.model.cast' .*a hook that is given already does")

    def test_a_draft_is_compared_when_it_follows_for_the_first_time(self) -> None:
        worker = self.speculating()
        draft = worker.worker.model_runner.get_draft_model()
        draft.model.fc.weight.data[0, 0] += 1
        self.attach(worker, draft="fixed")
        down, _ = self.receiver.leases.get(timeout=20)
        down.put(resume(1))
        worker.execute_method("dws_wait_ready", timeout=20)
        worker.execute_method("dws_detach")
        self.receiver.attached = None
        message = "differ from what checkpoint .*'draft.model.fc.weight' .draft.fc.weight"
        with self.assertRaisesRegex(dws.LayoutError, message):
            worker.execute_method("dws_attach", socket=self.receiver.socket, draft="follow", draft_prefix="draft.")
        self.assertIsNone(self.receiver.attached)

    def test_the_option_checkpoint_compares_both(self) -> None:
        follow: dict[str, Any] = {"draft": "follow", "draft_prefix": "draft.", "checkpoint": self.target}
        self.attach(self.speculating(), **follow)
        self.receiver.attached = None
        worker = self.speculating()
        worker.worker.model_runner.get_draft_model().model.fc.weight.data[0, 0] += 1
        self.refused(worker, dws.LayoutError, "differ from what checkpoint .*'draft.model.fc.weight'", **follow)

    def test_what_cannot_follow_is_refused_by_name(self) -> None:
        for worker, message in (
            (self.speculating(method="medusa"), "the method medusa, expected one of eagle, eagle3, mtp, draft_model"),
            (self.speculating(parallel_drafting=True), "parallel_drafting"),
        ):
            self.refused(worker, dws.LayoutError, f"cannot follow its target: {message}.*draft='fixed'", draft="follow")
        worker = self.speculating()
        worker.worker.model_runner.get_draft_model = lambda: None
        self.refused(worker, dws.StateError, r"get_draft_model\(\)\.named_parameters", draft="follow")

    def test_options_that_mean_nothing_are_refused(self) -> None:
        refused: Optional[dict[str, Any]]
        for refused, message in (
            ({"draft": "follow"}, "has no draft model"),
            ({"draft": "stale"}, "draft is 'stale', expected 'follow' or 'fixed'"),
            ({"draft_prefix": "draft."}, "draft_prefix is 'draft.', expected draft='follow'"),
        ):
            self.refused(self.worker(), dws.InvalidArgumentError, message, **refused)

    def test_the_weight_transfer_backend_attaches_both_and_wants_the_same_decision(self) -> None:
        dws.vllm.register()
        worker = self.speculating(settings={"weight_transfer_config": types.SimpleNamespace(backend="dws")})
        thread = ThreadPoolExecutor(1)  # as vLLM's workers: one thread for all calls
        self.addCleanup(thread.shutdown)

        def call(method: str, *arguments: Any) -> Any:
            return thread.submit(worker.execute_method, method, *arguments)

        init: dict[str, Any] = {"socket": self.receiver.socket, "options": {}}
        with self.assertRaisesRegex(dws.LayoutError, "draft='follow'"):
            call("init_weight_transfer_engine", init).result(60)
        init["options"] = {"draft": "follow", "draft_prefix": "draft."}
        call("init_weight_transfer_engine", init).result(60)
        self.addCleanup(lambda: call("shutdown_weight_transfer_engine").result(60))
        call("start_weight_update").result(60)
        update = call("update_weights", {"version": 1})
        down, up = self.receiver.leases.get(timeout=20)
        down.put(resume(1))
        update.result(60)
        self.assertIn("draft.fc.weight", [view.tensor for view in self.receiver.attached.views])
        self.assertTrue(self.receiver.attached.commits_on_request)

    def test_passes_run_with_the_version_of_both(self) -> None:
        worker = self.speculating()
        self.attach(worker, draft="follow", draft_prefix="draft.", step_timeout=0.01)
        down, up = self.receiver.leases.get(timeout=20)
        up.get(timeout=20)
        down.put(resume(7))
        self.assertEqual(worker.execute_method("dws_wait_ready", timeout=20)["version"], 7)
        self.assertIsNotNone(step(worker).logits)


if __name__ == "__main__":
    unittest.main()
