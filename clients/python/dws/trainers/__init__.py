"""Weights of training frameworks, handed to dws-senders. No module here imports a framework until it
is imported itself.

placement: finds the part of a tensor that this process has; refuses parts that a layout cannot
  express.
flat_tensors: weights that FSDP1 and ZeRO-3 cut inside of rows; flat_exchange: puts the rows together.
shares: decides which process publishes what, if several processes have the same part.
resident_shares: where a sender reads what a process publishes; device_buffers: the buffers on devices.
module_weights: a module's tensors, as a process registers and publishes them.
megatron_weights: the weights of a rank of Megatron, as it registers and publishes them.
publisher: publishes them, with a sender for each process that owns some.
hf: a callback for Hugging Face's transformers.Trainer and everything made from it.
weight_transfer: publishes weights that a framework gathers and streams; for TRL's AsyncGRPOTrainer.
vllm: the trainer's side of vLLM's weight transfer backend "dws".
grpo: generation of TRL's GRPOTrainer with the published weights.
ModelShape, slice_grid: the cuts that engines need, from a Hugging Face config.
cast_changes: cast_and_list, a cast of FP32 masters that lists what it changes.
"""

from dws.plugins.canonical import ModelShape, slice_grid
from dws.trainers.cast_changes import cast_and_list

__all__ = ["ModelShape", "cast_and_list", "slice_grid"]
