"""What the engine plugins (dws.vllm, dws.sglang) decide without their engine. None of these modules
imports one.

canonical, mapping: which part of a checkpoint's tensors lies where in a rank's parameters.
checkpoint: whether live parameters hold what the mapping says of them.
layers: what else must be known of a model before its parameters are written in place.
step_gate, agreement: forward passes inside of the lease, on all ranks or on none.
attach: all of it, for one rank.
"""
