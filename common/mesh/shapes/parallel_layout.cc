#include "common/mesh/shapes/parallel_layout.h"

#include <numeric>

#include "common/base/bytes.h"
#include "common/model/limits.h"

namespace dws::mesh {
namespace {

constexpr uint32_t kRanksOfHost = 8;
constexpr uint64_t kTrainerWords = 128;  // vocabularies are padded to a multiple a tp rank
constexpr uint64_t kEngineWords = 64;
constexpr uint32_t kDense = 0;  // meshes of a layout
constexpr uint32_t kExpert = 1;

Mesh MakeMesh(std::vector<Axis> axes, uint32_t rank_count) {
  Mesh mesh{.axes = std::move(axes), .ranks = std::vector<uint32_t>(rank_count)};
  std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0);
  return mesh;
}

Status CheckDivides(std::string_view what, uint64_t number, std::string_view axis, uint64_t size) {
  if (size > 0 && number % size == 0) return OkStatus();
  return InvalidArgumentError("{}={} does not divide the {} {}", axis, size, number, what);
}

Status CheckSizes(const ModelShape& shape, const ParallelSizes& sizes, uint64_t copies) {
  const uint64_t ranks = sizes.RankCount() * copies;
  if (ranks == 0 || ranks > limits::kWorldSizeMax) {
    return InvalidArgumentError("{} ranks, expected 1 to {}", ranks, limits::kWorldSizeMax);
  }
  if (sizes.fsdp > 0) return OkStatus();
  DWS_RETURN_IF_ERROR(CheckDivides("attention heads", shape.heads, "tp", sizes.tp));
  const uint64_t more = std::max<uint64_t>(shape.kv_heads, sizes.tp);
  DWS_RETURN_IF_ERROR(CheckDivides("key-value heads or tp ranks", more, "the lesser",
                                   std::min<uint64_t>(shape.kv_heads, sizes.tp)));
  if (sizes.pp > shape.layers) {
    return InvalidArgumentError("pp={} is more than the {} layers", sizes.pp, shape.layers);
  }
  if (shape.experts == 0) {
    if (sizes.ep == 1 && sizes.etp == 1) return OkStatus();
    return InvalidArgumentError("ep={}, etp={}: {} has no experts", sizes.ep, sizes.etp,
                                shape.name);
  }
  DWS_RETURN_IF_ERROR(CheckDivides("experts", shape.experts, "ep", sizes.ep));
  return CheckDivides("ranks of tp and dp", uint64_t{sizes.tp} * sizes.dp, "ep*etp",
                      uint64_t{sizes.ep} * sizes.etp);
}

// Adds the tensors of a layout module by module. Its meshes have the axes (leading, dp, tp) and
// (leading, edp, ep, etp): the leading one is the pipeline of a trainer or the number of engines.
class LayoutBuilder {
 public:
  LayoutBuilder(const ModelShape& shape, const ModelTensors& model, const ParallelSizes& sizes,
                Axis leading, bool is_trainer)
      : shape_(shape),
        model_(model),
        sizes_(sizes),
        leading_(std::move(leading)),
        is_trainer_(is_trainer) {
    const uint32_t inside = sizes.tp * sizes.dp;
    layout_.rank_count = leading_.size * inside;
    layout_.meshes = {
        MakeMesh({leading_, {.name = "dp", .size = sizes.dp}, {.name = "tp", .size = sizes.tp}},
                 layout_.rank_count),
        MakeMesh({leading_,
                  {.name = "edp", .size = inside / (sizes.ep * sizes.etp)},
                  {.name = "ep", .size = sizes.ep},
                  {.name = "etp", .size = sizes.etp}},
                 layout_.rank_count)};
    for (uint32_t rank = 0; rank < layout_.rank_count; ++rank) {
      layout_.hosts.push_back(rank / kRanksOfHost);
    }
  }

  MeshLayout Build() {
    for (const Module& module : model_.modules) AddBlock(module);
    return std::move(layout_);
  }

 private:
  FusedTensor Of(uint32_t tensor) const { return Whole(tensor, model_.catalogue[tensor].shape); }
  std::vector<FusedTensor> All(const Module& module) const {
    std::vector<FusedTensor> all;
    for (const uint32_t tensor : module.tensors) all.push_back(Of(tensor));
    return all;
  }
  Placement Leading(const Module& module) const {
    if (!is_trainer_) return Replicate();
    return Owner({static_cast<uint32_t>(module.layer * sizes_.pp / shape_.layers)});
  }

  void Add(uint32_t mesh, const Module& module, FusedTensor content,
           std::vector<Placement> inside) {
    inside.insert(inside.begin(), Leading(module));
    const CanonicalTensor& first = model_.catalogue[content.pieces.front().canonical];
    layout_.tensors.push_back({.name = "own." + first.name,
                               .dtype = first.dtype,
                               .content = std::move(content),
                               .mesh = mesh,
                               .placements = std::move(inside)});
  }
  void AddDense(const Module& module, FusedTensor content, Placement tp) {
    Add(kDense, module, std::move(content), {Replicate(), std::move(tp)});
  }
  void AddExpert(const Module& module, FusedTensor content, Placement ep, Placement etp) {
    Add(kExpert, module, std::move(content), {Replicate(), std::move(ep), std::move(etp)});
  }

  void AddBlock(const Module& module) {
    const std::vector<FusedTensor> all =
        module.role == Role::kExperts ? std::vector<FusedTensor>() : All(module);
    switch (module.role) {
      case Role::kEmbedding: {
        const uint64_t unit = (is_trainer_ ? kTrainerWords : kEngineWords) * sizes_.tp;
        const uint64_t words = CeilDiv(shape_.vocabulary, unit) * unit;
        return AddDense(module, Pad(all[0], 0, words), Shard(0));
      }
      case Role::kReplicated:
        return AddDense(module, all[0], Replicate());
      case Role::kColumn:
        return AddDense(module, all[0], Shard(0));
      case Role::kRow:
        return AddDense(module, all[0], Shard(1));
      case Role::kQkv: {
        const uint64_t groups =
            is_trainer_ ? std::max<uint64_t>(shape_.kv_heads, sizes_.tp) : sizes_.tp;
        return AddDense(module, Qkv(all[0], all[1], all[2], shape_.kv_heads, groups), Shard(0));
      }
      case Role::kLatent:
        if (!is_trainer_) return AddDense(module, Concat(0, all), Replicate());
        for (const FusedTensor& tensor : all) AddDense(module, tensor, Replicate());
        return;
      case Role::kGateUp:
        return AddDense(module, Stack(all), Shard(1));
      case Role::kExperts:
        return AddExperts(module);
      case Role::kStackedGateUp:
      case Role::kStackedDown:
      case Role::kStackedRows:
        return AddStacked(module, all[0]);
    }
  }

  void AddExperts(const Module& module) {
    const auto per_rank = static_cast<uint32_t>(shape_.experts) / sizes_.ep;
    std::vector<FusedTensor> gate_up;
    std::vector<FusedTensor> down;
    for (size_t i = 0; i < module.tensors.size(); i += 3) {
      gate_up.push_back(Stack({Of(module.tensors[i]), Of(module.tensors[i + 1])}));
      down.push_back(Of(module.tensors[i + 2]));
    }
    if (!is_trainer_) {
      AddExpert(module, Stack(gate_up), Shard(0), Shard(2));
      return AddExpert(module, Stack(down), Shard(0), Shard(2));
    }
    for (uint32_t expert = 0; expert < gate_up.size(); ++expert) {
      AddExpert(module, std::move(gate_up[expert]), Owner({expert / per_rank}), Shard(1));
      AddExpert(module, std::move(down[expert]), Owner({expert / per_rank}), Shard(1));
    }
  }

  // gpt-oss. The checkpoint interleaves gate and up; trainers take them apart, engines keep them and
  // turn matrices so that rows are outputs.
  void AddStacked(const Module& module, const FusedTensor& tensor) {
    const uint32_t id = module.tensors[0];
    const size_t dims = tensor.shape.size();
    if (module.role == Role::kStackedRows) return AddExpert(module, tensor, Shard(0), Replicate());
    if (module.role == Role::kStackedDown) {
      if (is_trainer_) return AddExpert(module, tensor, Shard(0), Shard(1));
      return AddExpert(module, Transpose(tensor, 1, 2), Shard(0), Shard(2));
    }
    if (!is_trainer_) {
      return AddExpert(module, dims == 3 ? Transpose(tensor, 1, 2) : tensor, Shard(0), Shard(1));
    }
    AddExpert(
        module,
        Stack({Every(id, tensor.shape, dims - 1, 2, 0), Every(id, tensor.shape, dims - 1, 2, 1)}),
        Shard(1), Shard(static_cast<uint32_t>(dims)));
  }

  const ModelShape& shape_;
  const ModelTensors& model_;
  const ParallelSizes& sizes_;
  Axis leading_;
  bool is_trainer_;
  MeshLayout layout_;
};

MeshLayout FsdpLayout(const ModelTensors& model, uint32_t ranks) {
  MeshLayout layout{.rank_count = ranks,
                    .meshes = {MakeMesh({{.name = "fsdp", .size = ranks}}, ranks)}};
  for (uint32_t t = 0; t < model.catalogue.size(); ++t) {
    const CanonicalTensor& tensor = model.catalogue[t];
    layout.tensors.push_back({.name = tensor.name,
                              .dtype = tensor.dtype,
                              .content = Whole(t, tensor.shape),
                              .placements = {Shard(0)}});
  }
  return layout;
}

}  // namespace

Result<MeshLayout> TrainerLayout(const ModelShape& shape, const ModelTensors& model,
                                 const ParallelSizes& sizes) {
  DWS_RETURN_IF_ERROR(Annotate(CheckSizes(shape, sizes, 1), "trainer"));
  if (sizes.fsdp > 0) return FsdpLayout(model, sizes.fsdp);
  return LayoutBuilder(shape, model, sizes, {.name = "pp", .size = sizes.pp}, true).Build();
}

Result<MeshLayout> EngineLayout(const ModelShape& shape, const ModelTensors& model,
                                const ParallelSizes& sizes, uint32_t engines) {
  if (sizes.pp != 1 || sizes.fsdp != 0) {
    return InvalidArgumentError(
        "engine: pp and fsdp are of trainers; engines have tp, dp, ep, etp");
  }
  DWS_RETURN_IF_ERROR(Annotate(CheckSizes(shape, sizes, engines), "engine"));
  return LayoutBuilder(shape, model, sizes, {.name = "engine", .size = engines}, false).Build();
}

}  // namespace dws::mesh
