"""For TRL's GRPO: the server generates completions with weights that came through DWS.

GRPOTrainer with a vLLM server sends every weight to it by NCCL before it generates. Made in
`generation_by_dws`, it publishes a version instead, and waits until receivers have committed it:

callback = PublishCallback("/run/dws/sender-{rank}.sock", "run7")          # dws.trainers.hf
with generation_by_dws(callback):
    trainer = GRPOTrainer(..., args=GRPOConfig(use_vllm=True, vllm_mode="server"), callbacks=[callback])
trainer.train()

The server's workers attach with dws.vllm.WorkerExtension; a version is committed between two of their
steps, so nothing has to be paused. AsyncGRPOTrainer: see dws.trainers.weight_transfer.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any, Iterator, Union

from dws.errors import InvalidArgumentError, StateError
from dws.trainers.weight_transfer import WAIT_SECONDS

if TYPE_CHECKING:
    from dws.trainers.hf import PublishCallback


@contextlib.contextmanager
def generation_by_dws(
    callback: "PublishCallback", policy: Union[str, int] = "all", timeout: float = WAIT_SECONDS
) -> Iterator[None]:
    """A block in which a trainer with `use_vllm=True, vllm_mode="server"` is made. It opens no group of
    NCCL, and publishes with `callback`, which has to be among its callbacks, where it would have sent
    the weights. TRL has no argument for that: inside the block two of its methods are replaced.

    Args:
      policy, timeout: receivers that must have committed a version before completions are generated
        with it, and seconds for that (Trainer.wait).

    Raises:
      StateError: this TRL has none of the methods.
      InvalidArgumentError: the callback publishes an adapter alone, and TRL's client generates with the base model; or, from
        the trainer's constructor: vLLM is in its own process ("colocate").
    """
    if callback.adapter is not None:
        raise InvalidArgumentError(
            f"the callback publishes adapter '{callback.adapter}' alone, and TRL's client asks the server for its base model: expected a "
            "callback without adapter=. Generate with requests of your own that name the adapter"
        )
    try:
        from trl.generation.vllm_client import VLLMClient
        from trl.generation.vllm_generation import VLLMGeneration

        made, joined, _ = (
            VLLMGeneration.__init__,
            VLLMClient.init_communicator,
            VLLMGeneration.sync_weights,
        )
    except (ImportError, AttributeError) as error:
        raise StateError(
            f"expected VLLMGeneration.sync_weights and VLLMClient.init_communicator in trl.generation, "
            f"as TRL 1.16 has them: {error}"
        ) from error

    def make(generation: Any, *args: Any, **given: Any) -> None:
        bound = inspect.signature(made).bind(generation, *args, **given)
        bound.apply_defaults()
        if bound.arguments["mode"] != "server":
            raise InvalidArgumentError(
                f"vllm_mode is '{bound.arguments['mode']}': vLLM in the trainer's process takes its weights "
                "from there, without DWS. Use vllm_mode='server', or leave generation_by_dws out"
            )
        made(generation, *args, **given)
        generation.sync_weights = functools.partial(_bring, generation, callback, policy, timeout)

    VLLMGeneration.__init__ = make
    VLLMClient.init_communicator = lambda client, device=0: None
    try:
        yield
    finally:
        VLLMGeneration.__init__ = made
        VLLMClient.init_communicator = joined


def _bring(
    generation: Any, callback: "PublishCallback", policy: Union[str, int], timeout: float
) -> None:
    """In place of VLLMGeneration.sync_weights, on every process. Cached prefixes were computed with the
    weights before."""
    callback.bring(policy, timeout)
    if generation.accelerator.is_main_process:
        generation.vllm_client.reset_prefix_cache()
    generation.accelerator.wait_for_everyone()
