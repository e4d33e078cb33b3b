"""What a trainer registers: tensors under the names of a checkpoint.

tensors = dws.declare.from_module(model)  # of transformers 5, with stacked experts, or any other
tensors.bind(trainer.register(tensors))   # the model now lives in shared memory, and trains there

tensors = dws.declare.from_megatron(model, hf_config, dws.declare.Parallel(tp=2, tp_rank=rank))
dws.trainers.publisher.Publisher(...).register(tensors)   # on every rank
"""

from dws.declare.megatron import MegatronTensors, from_megatron
from dws.declare.megatron_rules import Parallel
from dws.declare.module_tensors import ModuleTensors, from_module

__all__ = ["MegatronTensors", "ModuleTensors", "Parallel", "from_megatron", "from_module"]
