"""Models in the form of inference engines: the parameters of one rank, loading a checkpoint into them, and
a forward pass. Written independently of dws.plugins, like the engines do it: weight loaders narrow a
parameter by shard id and copy a narrowed checkpoint tensor into it."""

from __future__ import annotations

import dataclasses
import json
import struct
from typing import Any, Callable, Iterable, Iterator, Union

import torch

import dws
from dws.arrays import raw_bits

Checkpoint = dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Config:
    """A model's shape, with the names of a Hugging Face config."""

    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 4
    hidden_size: int = 24
    intermediate_size: int = 48
    vocab_size: int = 131
    num_hidden_layers: int = 2
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    num_experts: int = 0
    moe_intermediate_size: int = 16
    shared_expert_intermediate_size: int = 32


def checkpoint(config: Config, seed: int, dtype: torch.dtype = torch.bfloat16) -> Checkpoint:
    """Random weights under the names of a checkpoint."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in _canonical_shapes(config):
        tensors[name] = (torch.randn(shape, generator=random) * 0.3).to(dtype)
    return tensors


def _canonical_shapes(c: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, query = c.hidden_size, c.num_attention_heads * c.head_dim
    key_value = c.num_key_value_heads * c.head_dim
    yield "model.embed_tokens.weight", (c.vocab_size, hidden)
    for layer in range(c.num_hidden_layers):
        at = f"model.layers.{layer}"
        for letter, rows in (("q", query), ("k", key_value), ("v", key_value)):
            yield f"{at}.self_attn.{letter}_proj.weight", (rows, hidden)
            if c.attention_bias:
                yield f"{at}.self_attn.{letter}_proj.bias", (rows,)
        for letter in "qk":
            yield f"{at}.self_attn.{letter}_norm.weight", (c.head_dim,)
        yield f"{at}.self_attn.o_proj.weight", (hidden, query)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{norm}.weight", (hidden,)
        if not c.num_experts:
            yield from _mlp_shapes(f"{at}.mlp", c.intermediate_size, hidden)
            continue
        yield f"{at}.mlp.gate.weight", (c.num_experts, hidden)
        yield f"{at}.mlp.shared_expert_gate.weight", (1, hidden)
        shared = c.shared_expert_intermediate_size
        yield from _mlp_shapes(f"{at}.mlp.shared_expert", shared, hidden)
        for expert in range(c.num_experts):
            at_expert = f"{at}.mlp.experts.{expert}"
            yield from _mlp_shapes(at_expert, c.moe_intermediate_size, hidden)
    yield "model.norm.weight", (hidden,)
    if not c.tie_word_embeddings:
        yield "lm_head.weight", (c.vocab_size, hidden)


def _mlp_shapes(at: str, middle: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.gate_proj.weight", (middle, hidden)
    yield f"{at}.up_proj.weight", (middle, hidden)
    yield f"{at}.down_proj.weight", (hidden, middle)


def save_checkpoint(path: str, tensors: Checkpoint) -> None:
    """Writes a file in the safetensors format."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        dtype = dws.DType.of(tensor.dtype)
        raw = raw_bits(name, tensor, dtype).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        shape = list(tensor.shape)
        header[name] = {"dtype": dtype.name, "shape": shape, "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class RankModel(torch.nn.Module):
    """One rank's parameters, with an engine's names, shapes and loaders; values are noise until
    load_weights. Experts are split in ep_size groups of tp_size / ep_size ranks."""

    def __init__(
        self,
        config: Config,
        tp_rank: int,
        tp_size: int,
        ep_size: int = 1,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        super().__init__()
        self.config = config
        self.tp_rank, self.tp_size, self.ep_size = tp_rank, tp_size, ep_size
        self.moe_tp = tp_size // ep_size
        self.dtype = dtype
        self.loaders: dict[str, Callable[..., None]] = {}
        c, hidden = config, config.hidden_size
        self.heads = c.num_attention_heads // tp_size
        self.kv_heads = max(1, c.num_key_value_heads // tp_size)
        self.kv_replicas = max(1, tp_size // c.num_key_value_heads)
        self.vocab_rows = (c.vocab_size + 63) // 64 * 64 // tp_size
        self._add("model.embed_tokens.weight", (self.vocab_rows, hidden), self._vocab)
        for layer in range(c.num_hidden_layers):
            self._add_layer(f"model.layers.{layer}")
        self._add("model.norm.weight", (hidden,), self._whole)
        if c.tie_word_embeddings:
            self._module("lm_head").register_parameter(
                "weight", self.tensor("model.embed_tokens.weight")
            )
        else:
            self._add("lm_head.weight", (self.vocab_rows, hidden), self._vocab)

    def _add_layer(self, at: str) -> None:
        c, hidden, dim = self.config, self.config.hidden_size, self.config.head_dim
        rows = (self.heads + 2 * self.kv_heads) * dim
        self._add(f"{at}.self_attn.qkv_proj.weight", (rows, hidden), self._qkv)
        if c.attention_bias:
            self._add(f"{at}.self_attn.qkv_proj.bias", (rows,), self._qkv)
        self._add(f"{at}.self_attn.q_norm.weight", (dim,), self._whole)
        self._add(f"{at}.self_attn.k_norm.weight", (dim,), self._whole)
        self._add(f"{at}.self_attn.o_proj.weight", (hidden, self.heads * dim), self._row)
        self._module(f"{at}.self_attn.attn").register_buffer("_k_scale", torch.ones(()))
        for norm in ("input_layernorm", "post_attention_layernorm"):
            self._add(f"{at}.{norm}.weight", (hidden,), self._whole)
        if not c.num_experts:
            self._add_mlp(f"{at}.mlp", c.intermediate_size // self.tp_size)
            return
        self._add(f"{at}.mlp.gate.weight", (c.num_experts, hidden), self._whole)
        self._add(f"{at}.mlp.shared_expert_gate.weight", (1, hidden), self._whole)
        shared = c.shared_expert_intermediate_size // self.tp_size
        self._add_mlp(f"{at}.mlp.shared_expert", shared)
        local = int((self.expert_map() >= 0).sum())
        middle = c.moe_intermediate_size // self.moe_tp
        self._add(f"{at}.mlp.experts.w13_weight", (local, 2 * middle, hidden), self._expert)
        self._add(f"{at}.mlp.experts.w2_weight", (local, hidden, middle), self._expert)
        self._module(f"{at}.mlp.experts").register_buffer("expert_map", self.expert_map())

    def _add_mlp(self, at: str, middle: int) -> None:
        hidden = self.config.hidden_size
        self._add(f"{at}.gate_up_proj.weight", (2 * middle, hidden), self._merged)
        self._add(f"{at}.down_proj.weight", (hidden, middle), self._row)

    def expert_map(self) -> torch.Tensor:
        """Local index of each expert, -1 for those of other ranks."""
        count = self.config.num_experts
        found = torch.full((count,), -1, dtype=torch.int32)
        group = self.tp_rank // self.moe_tp
        sizes = [count // self.ep_size + (g < count % self.ep_size) for g in range(self.ep_size)]
        first = sum(sizes[:group])
        found[first : first + sizes[group]] = torch.arange(sizes[group], dtype=torch.int32)
        return found

    def _module(self, path: str) -> torch.nn.Module:
        module: torch.nn.Module = self
        for part in path.split("."):
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]  # type: ignore[assignment]
        return module

    def _add(self, name: str, shape: tuple[int, ...], loader: Callable[..., None]) -> None:
        path, _, leaf = name.rpartition(".")
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(len(self.loaders)))
        parameter = torch.nn.Parameter(noise.to(self.dtype), requires_grad=False)
        self._module(path).register_parameter(leaf, parameter)
        self.loaders[name] = loader

    def tensor(self, name: str) -> torch.nn.Parameter:
        path, _, leaf = name.rpartition(".")
        found: torch.nn.Parameter = self._module(path)._parameters[leaf]  # type: ignore[assignment]
        return found

    # Loading, like engines do it: stacked names first, then shards by id.

    def load_weights(self, weights: Union[Checkpoint, Iterable[tuple[str, torch.Tensor]]]) -> None:
        for name, loaded in dict(weights).items():
            for stacked, part in (
                ("qkv_proj", "q"),
                ("qkv_proj", "k"),
                ("qkv_proj", "v"),
                ("gate_up_proj", "gate"),
                ("gate_up_proj", "up"),
            ):
                if ".experts." not in name and f".{part}_proj." in name:
                    target = name.replace(f"{part}_proj", stacked)
                    self.loaders[target](self.tensor(target).data, loaded, part)
                    break
            else:
                if ".experts." in name:
                    head, expert, projection, _ = name.rsplit(".", 3)
                    stack = "w2_weight" if projection == "down_proj" else "w13_weight"
                    target = f"{head}.{stack}"
                    self._expert(self.tensor(target).data, loaded, (int(expert), projection))
                else:
                    self.loaders[name](self.tensor(name).data, loaded, None)

    def _whole(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
        parameter.copy_(loaded)

    def _row(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
        size = parameter.shape[1]
        parameter.copy_(loaded.narrow(1, self.tp_rank * size, size))

    def _vocab(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
        begin = min(self.tp_rank * self.vocab_rows, loaded.shape[0])
        end = min(begin + self.vocab_rows, loaded.shape[0])
        parameter[: end - begin].copy_(loaded[begin:end])

    def _merged(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
        size = parameter.shape[0] // 2
        target = parameter.narrow(0, 0 if shard == "gate" else size, size)
        target.copy_(loaded.narrow(0, self.tp_rank * size, size))

    def _qkv(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
        dim = self.config.head_dim
        query, key_value = self.heads * dim, self.kv_heads * dim
        offset = {"q": 0, "k": query, "v": query + key_value}[shard]
        size = query if shard == "q" else key_value
        rank = self.tp_rank if shard == "q" else self.tp_rank // self.kv_replicas
        parameter.narrow(0, offset, size).copy_(loaded.narrow(0, rank * size, size))

    def _expert(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
        expert, projection = shard
        local = int(self.expert_map()[expert])
        if local < 0:
            return
        rank = self.tp_rank % self.moe_tp
        if projection == "down_proj":
            size = parameter.shape[2]
            parameter[local].copy_(loaded.narrow(1, rank * size, size))
            return
        size = parameter.shape[1] // 2
        target = parameter[local].narrow(0, 0 if projection == "gate_proj" else size, size)
        target.copy_(loaded.narrow(0, rank * size, size))


class PaddedModel(RankModel):
    """With vocabularies as engines load them: padding is set to zero."""

    def _vocab(self, parameter: torch.Tensor, loaded: torch.Tensor, shard: Any) -> None:
        super()._vocab(parameter, loaded, shard)
        begin = min(self.tp_rank * self.vocab_rows, loaded.shape[0])
        rows = min(begin + self.vocab_rows, loaded.shape[0]) - begin
        parameter[rows:].data.fill_(0)


Reduce = Callable[[torch.Tensor], torch.Tensor]


def hidden_states(model: RankModel, tokens: torch.Tensor, reduce: Reduce) -> torch.Tensor:
    """The layers of a dense model, with all parameters except lm_head; `reduce` sums over ranks."""
    c, rows = model.config, model.vocab_rows
    local = tokens - model.tp_rank * rows
    valid = (local >= 0) & (local < rows)
    embedded = model.tensor("model.embed_tokens.weight")[local.clamp(0, rows - 1)]
    x = reduce(embedded * valid.unsqueeze(-1))
    for layer in range(c.num_hidden_layers):
        at = f"model.layers.{layer}"
        h = x * model.tensor(f"{at}.input_layernorm.weight")
        q, k, v = (h @ model.tensor(f"{at}.self_attn.qkv_proj.weight").T).split(
            [model.heads * c.head_dim, *[model.kv_heads * c.head_dim] * 2], dim=-1
        )
        q = q.view(-1, model.heads, c.head_dim) * model.tensor(f"{at}.self_attn.q_norm.weight")
        k = k.view(-1, model.kv_heads, c.head_dim) * model.tensor(f"{at}.self_attn.k_norm.weight")
        repeat = model.heads // model.kv_heads
        k, v = (t.view(-1, model.kv_heads, c.head_dim).repeat_interleave(repeat, 1) for t in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k).softmax(-1)
        mixed = torch.einsum("hqk,khd->qhd", scores, v).reshape(len(tokens), -1)
        x = x + reduce(mixed @ model.tensor(f"{at}.self_attn.o_proj.weight").T)
        h = x * model.tensor(f"{at}.post_attention_layernorm.weight")
        gate, up = (h @ model.tensor(f"{at}.mlp.gate_up_proj.weight").T).chunk(2, dim=-1)
        down = model.tensor(f"{at}.mlp.down_proj.weight")
        x = x + reduce((torch.nn.functional.silu(gate) * up) @ down.T)
    return x * model.tensor("model.norm.weight")


def logits(model: RankModel, hidden: torch.Tensor, reduce: Reduce) -> torch.Tensor:
    """The logits of hidden states, with lm_head."""
    rows = model.vocab_rows
    part = hidden @ model.tensor("lm_head.weight").T
    whole = torch.zeros(len(hidden), model.tp_size * rows, dtype=part.dtype)
    whole[:, model.tp_rank * rows : (model.tp_rank + 1) * rows] = part
    return reduce(whole)[:, : model.config.vocab_size]
