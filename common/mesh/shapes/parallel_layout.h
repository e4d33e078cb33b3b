// How usual trainers and engines cut a model: layouts from the sizes of their parallelism. Pure.
#pragma once

#include <cstdint>
#include <optional>

#include "common/base/status.h"
#include "common/mesh/shapes/model_shape.h"

namespace dws::mesh {

// Sizes of the axes of one trainer, or of one engine.
struct ParallelSizes {
  uint32_t tp = 1;  // tensor
  uint32_t pp = 1;  // pipeline; of trainers
  uint32_t dp = 1;  // data: replicas of the dense layers
  uint32_t ep = 1;  // expert, over the ranks of dp and tp
  // Tensor, inside an expert. Not named: 1 for a trainer; for an engine all ranks of dp and tp that
  // ep leaves, because vLLM and SGLang hold no expert twice.
  std::optional<uint32_t> etp;
  uint32_t fsdp = 0;  // rows of every tensor over so many ranks, each dp times; excludes the others

  uint64_t RankCount() const { return (fsdp > 0 ? uint64_t{fsdp} : uint64_t{tp} * pp) * dp; }
};

// A trainer like Megatron: tp changes fastest, then dp, then pp; each expert is a tensor; QKV in
// groups, gate beside up. With `fsdp`, like FSDP2: the checkpoint's tensors in rows; like HSDP with
// `dp`. INVALID_ARGUMENT: the sizes do not divide the model or each other.
Result<MeshLayout> TrainerLayout(const ModelShape& shape, const ModelTensors& model,
                                 const ParallelSizes& sizes);

// `engines` engines like vLLM: QKV by rank, gate beside up, experts stacked. Eight consecutive
// ranks are one host. INVALID_ARGUMENT as above.
Result<MeshLayout> EngineLayout(const ModelShape& shape, const ModelTensors& model,
                                const ParallelSizes& sizes, uint32_t engines);

}  // namespace dws::mesh
