"""Weights of training frameworks, handed to dws-senders. No module here imports a framework until it
is imported itself.

placement: which part of a tensor this process has; refuses what a layout cannot express.
flat_tensors: weights that FSDP1 and ZeRO-3 cut inside of rows; flat_exchange: puts the rows together.
shares: who publishes what of the parts that several processes have.
module_weights: a module's tensors, as they are registered and published.
megatron_weights: what a rank of Megatron has, as it is registered and published.
publisher: publishes them, with a sender for each process that owns some.
hf: a callback for Hugging Face's transformers.Trainer and everything made from it.
weight_transfer: publishes weights that a framework gathers and streams; for TRL's AsyncGRPOTrainer.
grpo: generation of TRL's GRPOTrainer with the published weights.
"""
