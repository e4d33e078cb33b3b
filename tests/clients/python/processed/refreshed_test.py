"""dws.plugins.refreshed: copies of weights that an engine's own call brings up to date, and those that it does not."""

from __future__ import annotations

import types
import unittest
import unittest.mock
from typing import Any

import torch

import dws
from dws.held.watch import CopyWatch
from dws.plugins import refreshed as refreshed_module
from dws.plugins.attach import _refreshed
from dws.torch_module import named_tensors


class Attention(torch.nn.Module):
    """Holds a padded slice of its weight, as a tensor that is kept, and a cast of another one, which is made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.sink = torch.nn.Parameter(torch.rand(16), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.rand(8), requires_grad=False)
        self.state = types.SimpleNamespace(local=torch.zeros(12), norms={0: torch.zeros(8)})
        self.lazy: Any = None
        self.is_on = True
        self.derived: Any = None  # no copy of a weight
        self.writes: Any = None

    def refresh(self) -> None:
        if not self.is_on:
            return
        if self.derived is not None:
            self.derived = 1 + self.norm.detach()
            self.writes.copy_(self.sink * self.norm.sum())
        self.state.local[:8].copy_(self.sink[8:])
        self.state.norms[0] = self.norm.detach().double()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.post_load_weights()

    def post_load_weights(self, weight_names: Any = None) -> None:
        self.attention.refresh()


class RefreshedTest(unittest.TestCase):
    def setUp(self) -> None:
        torch.manual_seed(5)
        self.model = Model()
        self.processing: Any = types.SimpleNamespace(refresh=lambda: self.model.post_load_weights)

    def refreshed(self) -> Any:
        weights = named_tensors(self.model)
        self.watch = CopyWatch(self.model, lambda: weights)
        return _refreshed(self.watch, self.processing, derives=False)

    def commit(self) -> None:
        for tensor in self.model.parameters():
            tensor.data.copy_(torch.rand(tensor.shape))

    def test_copies_follow_a_commit_in_the_tensors_that_the_engine_has(self) -> None:
        state = self.model.attention.state
        held = [state.local, state.norms[0]]
        before = [tensor.clone() for tensor in held]
        weights = {name: tensor.clone() for name, tensor in named_tensors(self.model).items()}
        refreshed = self.refreshed()
        self.assertEqual(sorted(refreshed.adopted), ["attention.state.local", "attention.state.norms.0"])
        for tensor, was in zip(held, before):
            self.assertTrue(torch.equal(tensor, was))  # the trial has changed nothing
        for name, tensor in named_tensors(self.model).items():
            self.assertTrue(torch.equal(tensor, weights[name]))
        for _ in range(2):
            self.commit()
            refreshed.run()
            self.assertIs(state.norms[0], held[1])
            self.assertEqual(held[1].tolist(), self.model.attention.norm.double().tolist())
            self.assertEqual(held[0].tolist(), [*self.model.attention.sink[8:].tolist(), 0, 0, 0, 0])

    def test_what_the_call_computes_of_weights_follows_a_commit_although_it_is_no_copy(self) -> None:
        attention = self.model.attention
        derived, writes = torch.zeros(8), torch.zeros(16)
        attention.derived, attention.writes, attention.table = derived, writes, torch.rand(5)
        refreshed = self.refreshed()
        made = [f"attention.{name}" for name in ("derived", "state.local", "state.norms.0", "writes")]
        self.assertEqual(sorted(refreshed.adopted), made)
        self.commit()
        refreshed.run()
        self.assertIs(attention.derived, derived)  # which CUDA graphs know
        self.assertTrue(torch.equal(derived, 1 + attention.norm))
        self.assertTrue(torch.equal(writes, attention.sink * attention.norm.sum()))

    def test_a_copy_that_a_pass_makes_is_brought_up_to_date_or_wrong(self) -> None:
        state = self.model.attention.state
        local, state.local, state.norms[0] = state.local, torch.zeros(12), torch.zeros(8)
        self.model.attention.is_on = False
        refreshed = self.refreshed()
        self.assertEqual(refreshed.adopted, {})
        refreshed.run()  # does nothing
        self.assertEqual(float(state.local.sum()), 0.0)
        self.model.attention.is_on = True
        state.local.copy_(local)  # a pass
        self.assertIsNone(self.watch.after_pass())
        self.assertTrue(torch.equal(state.local, local))
        self.assertEqual(sorted(refreshed.adopted), ["attention.state.local"])
        self.commit()
        refreshed.run()
        self.assertEqual(state.local[:8].tolist(), self.model.attention.sink[8:].tolist())
        lazy = self.model.attention.lazy = self.model.attention.norm.detach().clone()  # the next pass
        self.assertRegex(str(self.watch.after_pass()), "'attention.lazy' .Attention.*'attention.norm' .1 in all")
        self.assertEqual(lazy.tolist(), self.model.attention.norm.tolist())
        # The call itself has made one more.
        self.assertEqual(sorted(refreshed.adopted), ["attention.state.local", "attention.state.norms.0"])

    def test_a_copy_that_the_call_leaves_as_it_is_is_refused(self) -> None:
        self.model.attention.lazy = self.model.attention.norm.detach().clone()
        with self.assertRaisesRegex(dws.LayoutError, "'attention.lazy' .Attention.*'attention.norm' .1 in all"):
            self.refreshed()

    def test_a_model_without_such_a_call_is_refused(self) -> None:
        for processing in (None, types.SimpleNamespace(refresh=lambda: None)):
            self.processing = processing
            with self.assertRaisesRegex(dws.LayoutError, "'attention.state.*2 in all"):
                self.refreshed()

    def test_a_call_that_fails_or_makes_something_else_is_refused_and_copies_are_as_before(self) -> None:
        def fails() -> None:
            raise ValueError("weights are gone")

        def other_shape() -> None:
            self.model.attention.refresh()
            self.model.attention.state.norms[0] = torch.zeros(9, dtype=torch.float64)

        def other_values() -> None:
            self.model.attention.refresh()
            self.model.attention.state.local[:8].copy_(self.model.attention.sink[:8])

        state = self.model.attention.state
        held = [state.local, state.norms[0]]
        before = [tensor.clone() for tensor in held]
        for call, told in (
            (fails, "fails: ValueError: weights are gone"),
            (other_shape, "'attention.state.norms.0'.*another shape"),
            (other_values, "'attention.state.local'.*1 in all"),
        ):
            with self.subTest(told):
                self.processing = types.SimpleNamespace(refresh=lambda call=call: call)
                with unittest.mock.patch.object(refreshed_module._LOG, "warning") as warned:
                    with self.assertRaisesRegex(dws.LayoutError, told):
                        self.refreshed()
                warned.assert_not_called()
                self.assertEqual([id(tensor) for tensor in held], [id(state.local), id(state.norms[0])])
                for tensor, was in zip(held, before):
                    self.assertTrue(torch.equal(tensor, was))


if __name__ == "__main__":
    unittest.main()
