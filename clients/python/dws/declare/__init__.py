"""What a trainer registers: tensors under the names of a checkpoint.

tensors = dws.declare.from_module(model)  # of transformers 5, with stacked experts, or any other
tensors.bind(trainer.register(tensors))   # the model now lives in shared memory, and trains there
"""

from dws.declare.module_tensors import ModuleTensors, from_module

__all__ = ["ModuleTensors", "from_module"]
