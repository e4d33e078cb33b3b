// The tensors of published models, made from their configurations: names, shapes and roles, no
// weights. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/mesh/mesh_layout.h"

namespace dws::mesh {

// A model's public configuration. Multi-token-prediction layers are left out.
struct ModelShape {
  std::string_view name;
  double published_parameters = 0;
  uint64_t layers = 0;
  uint64_t hidden = 0;
  uint64_t heads = 0;
  uint64_t kv_heads = 0;
  uint64_t head_dim = 0;
  uint64_t intermediate = 0;  // of dense layers
  uint64_t vocabulary = 0;
  bool qkv_bias = false;
  bool qk_norm = false;
  bool stacked_experts = false;  // gpt-oss: all experts in one tensor, gate and up interleaved
  uint64_t experts = 0;          // 0: all layers are dense
  uint64_t expert_intermediate = 0;
  uint64_t shared_experts = 0;
  uint64_t dense_layers = 0;  // at the beginning of a model with experts
  uint64_t q_rank = 0;        // multi-head latent attention; 0: grouped-query attention
  uint64_t kv_rank = 0;
  uint64_t rope_dim = 0;
  uint64_t value_dim = 0;
};

std::span<const ModelShape> KnownModels();
// nullptr: not known.
const ModelShape* FindModel(std::string_view name);

// What tensors are in their model, which says how they are fused and cut.
enum class Role : uint8_t {
  kEmbedding,      // also the output head: rows are words
  kReplicated,     // one tensor, whole on every rank
  kColumn,         // one tensor, cut by rows
  kRow,            // one tensor, cut by columns
  kQkv,            // query, key, value
  kLatent,         // the down projections of query and key-value
  kGateUp,         // gate, up
  kExperts,        // gate, up and down of expert 0, then of expert 1, ...
  kStackedGateUp,  // all experts: [experts, hidden, 2 * intermediate], or its bias
  kStackedDown,    // all experts: [experts, intermediate, hidden]
  kStackedRows,    // all experts: one row each
};

// Tensors that layouts fuse with each other.
struct Module {
  Role role = Role::kReplicated;
  uint64_t layer = 0;  // the embedding is in the first, the head in the last
  std::vector<uint32_t> tensors;
};

struct ModelTensors {
  Catalogue catalogue;
  std::vector<Module> modules;  // each canonical tensor is in one

  uint64_t ElementCount() const;
  uint64_t SizeBytes() const;
};
ModelTensors TensorsOf(const ModelShape& shape);

}  // namespace dws::mesh
