"""Adapters of LoRA by themselves: A and B by the names that peft saves, without the base model.

A trainer publishes them with Publisher(adapter=) or PublishCallback(adapter=) (dws.trainers); engines attach
them with dws.vllm. docs/lora.md says how.

What engines multiply B by is in adapter_config.json and not in a tensor. So a registration has it in shapes,
which a receiver compares when an engine attaches: see AdapterConfig.tensors.
"""

from dws.adapters.config import AdapterConfig

__all__ = ["AdapterConfig"]
