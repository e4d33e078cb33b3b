#include "common/mesh/shapes/model_shape.h"

#include <fmt/format.h>

#include <algorithm>

namespace dws::mesh {
namespace {

constexpr ModelShape kModels[] = {
    {.name = "llama-3-8b",
     .published_parameters = 8.03e9,
     .layers = 32,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .intermediate = 14336,
     .vocabulary = 128256},
    {.name = "llama-3-70b",
     .published_parameters = 70.6e9,
     .layers = 80,
     .hidden = 8192,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 128,
     .intermediate = 28672,
     .vocabulary = 128256},
    {.name = "qwen2.5-7b",
     .published_parameters = 7.61e9,
     .layers = 28,
     .hidden = 3584,
     .heads = 28,
     .kv_heads = 4,
     .head_dim = 128,
     .intermediate = 18944,
     .vocabulary = 152064,
     .qkv_bias = true},
    {.name = "qwen3-8b",
     .published_parameters = 8.2e9,
     .layers = 36,
     .hidden = 4096,
     .heads = 32,
     .kv_heads = 8,
     .head_dim = 128,
     .intermediate = 12288,
     .vocabulary = 151936,
     .qk_norm = true},
    {.name = "qwen3-30b-a3b",
     .published_parameters = 30.5e9,
     .layers = 48,
     .hidden = 2048,
     .heads = 32,
     .kv_heads = 4,
     .head_dim = 128,
     .vocabulary = 151936,
     .qk_norm = true,
     .experts = 128,
     .expert_intermediate = 768},
    {.name = "glm-4.5",
     .published_parameters = 355e9,
     .layers = 92,
     .hidden = 5120,
     .heads = 96,
     .kv_heads = 8,
     .head_dim = 128,
     .intermediate = 12288,
     .vocabulary = 151552,
     .qkv_bias = true,
     .qk_norm = true,
     .experts = 160,
     .expert_intermediate = 1536,
     .shared_experts = 1,
     .dense_layers = 3},
    {.name = "deepseek-v3",
     .published_parameters = 671e9,
     .layers = 61,
     .hidden = 7168,
     .heads = 128,
     .kv_heads = 128,
     .head_dim = 128,
     .intermediate = 18432,
     .vocabulary = 129280,
     .experts = 256,
     .expert_intermediate = 2048,
     .shared_experts = 1,
     .dense_layers = 3,
     .q_rank = 1536,
     .kv_rank = 512,
     .rope_dim = 64,
     .value_dim = 128},
    {.name = "kimi-k2",
     .published_parameters = 1.03e12,
     .layers = 61,
     .hidden = 7168,
     .heads = 64,
     .kv_heads = 64,
     .head_dim = 128,
     .intermediate = 18432,
     .vocabulary = 163840,
     .experts = 384,
     .expert_intermediate = 2048,
     .shared_experts = 1,
     .dense_layers = 1,
     .q_rank = 1536,
     .kv_rank = 512,
     .rope_dim = 64,
     .value_dim = 128},
    {.name = "gpt-oss-120b",
     .published_parameters = 116.8e9,
     .layers = 36,
     .hidden = 2880,
     .heads = 64,
     .kv_heads = 8,
     .head_dim = 64,
     .vocabulary = 201088,
     .qkv_bias = true,
     .stacked_experts = true,
     .experts = 128,
     .expert_intermediate = 2880},
};

// Adds the tensors of one model, layer by layer.
class TensorBuilder {
 public:
  explicit TensorBuilder(const ModelShape& shape) : shape_(shape) {}

  ModelTensors Build() {
    Add(Role::kEmbedding, "model.embed_tokens", {shape_.vocabulary, shape_.hidden});
    for (layer_ = 0; layer_ < shape_.layers; ++layer_) {
      Norm("input_layernorm", shape_.hidden);
      Norm("post_attention_layernorm", shape_.hidden);
      shape_.q_rank > 0 ? LatentAttention() : GroupedAttention();
      if (layer_ < shape_.dense_layers || shape_.experts == 0) {
        FeedForward("mlp", shape_.intermediate);
      } else {
        Experts();
      }
    }
    layer_ = shape_.layers - 1;
    Add(Role::kReplicated, "model.norm", {shape_.hidden});
    Add(Role::kEmbedding, "lm_head", {shape_.vocabulary, shape_.hidden});
    return std::move(out_);
  }

 private:
  using Shape = std::vector<uint64_t>;

  uint32_t Tensor(const std::string& name, Shape shape, DType dtype = DType::kBF16) {
    out_.catalogue.push_back({.name = name, .dtype = dtype, .shape = std::move(shape)});
    return static_cast<uint32_t>(out_.catalogue.size() - 1);
  }
  std::string InLayer(std::string_view name) const {
    return fmt::format("model.layers.{}.{}", layer_, name);
  }
  void Group(Role role, std::vector<uint32_t> tensors) {
    out_.modules.push_back({.role = role, .layer = layer_, .tensors = std::move(tensors)});
  }
  void Add(Role role, const std::string& module, Shape shape) {
    Group(role, {Tensor(module + ".weight", std::move(shape))});
  }
  void Norm(std::string_view name, uint64_t size) { Add(Role::kReplicated, InLayer(name), {size}); }

  void GroupedAttention() {
    const uint64_t q = shape_.heads * shape_.head_dim;
    const uint64_t kv = shape_.kv_heads * shape_.head_dim;
    const auto projections = [&](std::string_view suffix, const Shape& columns) {
      std::vector<uint32_t> tensors;
      for (const auto& [name, rows] : {std::pair("q", q), std::pair("k", kv), std::pair("v", kv)}) {
        Shape rows_first{rows};
        rows_first.insert(rows_first.end(), columns.begin(), columns.end());
        tensors.push_back(
            Tensor(InLayer(fmt::format("self_attn.{}_proj.{}", name, suffix)), rows_first));
      }
      Group(Role::kQkv, tensors);
    };
    projections("weight", {shape_.hidden});
    if (shape_.qkv_bias) projections("bias", {});
    if (shape_.qk_norm) {
      Norm("self_attn.q_norm", shape_.head_dim);
      Norm("self_attn.k_norm", shape_.head_dim);
    }
    Add(Role::kRow, InLayer("self_attn.o_proj"), {shape_.hidden, q});
    if (shape_.stacked_experts) {
      Group(Role::kReplicated, {Tensor(InLayer("self_attn.o_proj.bias"), {shape_.hidden})});
      Group(Role::kColumn, {Tensor(InLayer("self_attn.sinks"), {shape_.heads})});
    }
  }

  void LatentAttention() {
    const ModelShape& s = shape_;
    Group(Role::kLatent, {Tensor(InLayer("self_attn.q_a_proj.weight"), {s.q_rank, s.hidden}),
                          Tensor(InLayer("self_attn.kv_a_proj_with_mqa.weight"),
                                 {s.kv_rank + s.rope_dim, s.hidden})});
    Norm("self_attn.q_a_layernorm", s.q_rank);
    Norm("self_attn.kv_a_layernorm", s.kv_rank);
    Add(Role::kColumn, InLayer("self_attn.q_b_proj"),
        {s.heads * (s.head_dim + s.rope_dim), s.q_rank});
    Add(Role::kColumn, InLayer("self_attn.kv_b_proj"),
        {s.heads * (s.head_dim + s.value_dim), s.kv_rank});
    Add(Role::kRow, InLayer("self_attn.o_proj"), {s.hidden, s.heads * s.value_dim});
  }

  void FeedForward(const std::string& module, uint64_t intermediate) {
    Group(Role::kGateUp,
          {Tensor(InLayer(module + ".gate_proj.weight"), {intermediate, shape_.hidden}),
           Tensor(InLayer(module + ".up_proj.weight"), {intermediate, shape_.hidden})});
    Add(Role::kRow, InLayer(module + ".down_proj"), {shape_.hidden, intermediate});
  }

  void Experts() {
    const uint64_t count = shape_.experts;
    const uint64_t wide = shape_.expert_intermediate;
    const std::string router = InLayer(shape_.stacked_experts ? "mlp.router" : "mlp.gate");
    Add(Role::kReplicated, router, {count, shape_.hidden});
    if (shape_.stacked_experts) {
      const auto stacked = [&](Role role, std::string_view name, Shape shape) {
        Group(role, {Tensor(InLayer(fmt::format("mlp.experts.{}", name)), std::move(shape))});
      };
      Group(Role::kReplicated, {Tensor(router + ".bias", {count})});
      stacked(Role::kStackedGateUp, "gate_up_proj", {count, shape_.hidden, 2 * wide});
      stacked(Role::kStackedGateUp, "gate_up_proj_bias", {count, 2 * wide});
      stacked(Role::kStackedDown, "down_proj", {count, wide, shape_.hidden});
      stacked(Role::kStackedRows, "down_proj_bias", {count, shape_.hidden});
      return;
    }
    std::vector<uint32_t> tensors;
    for (uint64_t expert = 0; expert < count; ++expert) {
      const auto add = [&](std::string_view name, uint64_t rows, uint64_t columns) {
        tensors.push_back(Tensor(InLayer(fmt::format("mlp.experts.{}.{}.weight", expert, name)),
                                 {rows, columns}));
      };
      add("gate_proj", wide, shape_.hidden);
      add("up_proj", wide, shape_.hidden);
      add("down_proj", shape_.hidden, wide);
    }
    Group(Role::kExperts, std::move(tensors));
    if (shape_.shared_experts == 0) return;
    // The one tensor that these models are published with in another dtype than their weights.
    Group(Role::kReplicated, {Tensor(router + ".e_score_correction_bias", {count}, DType::kF32)});
    FeedForward("mlp.shared_experts", shape_.shared_experts * wide);
  }

  const ModelShape& shape_;
  uint64_t layer_ = 0;
  ModelTensors out_;
};

}  // namespace

std::span<const ModelShape> KnownModels() { return kModels; }

const ModelShape* FindModel(std::string_view name) {
  const auto* found = std::find_if(std::begin(kModels), std::end(kModels),
                                   [&](const ModelShape& model) { return model.name == name; });
  return found == std::end(kModels) ? nullptr : found;
}

uint64_t ModelTensors::ElementCount() const {
  uint64_t count = 0;
  for (const CanonicalTensor& tensor : catalogue) count += Volume(WholeBox(tensor.shape));
  return count;
}

uint64_t ModelTensors::SizeBytes() const {
  uint64_t bytes = 0;
  for (const CanonicalTensor& tensor : catalogue) bytes += tensor.SizeBytes();
  return bytes;
}

// Embedding and head count as parts of the layers beside them: pipeline stages are cut by layers.
ModelTensors TensorsOf(const ModelShape& shape) { return TensorBuilder(shape).Build(); }

}  // namespace dws::mesh
