#include "common/mesh/shapes/parallel_layout.h"

#include <algorithm>
#include <numeric>

#include "common/base/bytes.h"
#include "common/model/limits.h"

namespace dws::mesh {
namespace {

constexpr uint32_t kRanksOfHost = 8;
constexpr uint64_t kTrainerWords = 128;
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

// Megatron pads its vocabulary to a multiple of 128 words for each rank of tp. vLLM's
// VocabParallelEmbedding pads to a multiple of 64, whatever tp is, and refuses a tp that does not
// divide that.
uint64_t PaddedVocabulary(const ModelShape& shape, const ParallelSizes& sizes, bool is_trainer) {
  const uint64_t unit = is_trainer ? kTrainerWords * sizes.tp : kEngineWords;
  return CeilDiv(shape.vocabulary, unit) * unit;
}

// Into how many parts experts are cut inside, of sizes that CheckSizes accepts.
uint32_t ExpertTensorSize(const ParallelSizes& sizes, bool is_trainer) {
  return sizes.etp.value_or(is_trainer ? 1 : std::max(1U, sizes.tp * sizes.dp / sizes.ep));
}

Status CheckExperts(const ModelShape& shape, const ParallelSizes& sizes, bool is_trainer) {
  DWS_RETURN_IF_ERROR(CheckDivides("experts", shape.experts, "ep", sizes.ep));
  const uint64_t etp = ExpertTensorSize(sizes, is_trainer);
  DWS_RETURN_IF_ERROR(CheckDivides("ranks of tp and dp", uint64_t{sizes.tp} * sizes.dp, "ep*etp",
                                   uint64_t{sizes.ep} * etp));
  DWS_RETURN_IF_ERROR(
      CheckDivides("intermediate features of an expert", shape.expert_intermediate, "etp", etp));
  return CheckDivides("intermediate features of the shared experts",
                      shape.shared_experts * shape.expert_intermediate, "tp", sizes.tp);
}

Status CheckSizes(const ModelShape& shape, const ParallelSizes& sizes, uint64_t copies,
                  bool is_trainer) {
  const uint64_t ranks = sizes.RankCount() * copies;
  if (ranks == 0 || ranks > limits::kWorldSizeMax) {
    return InvalidArgumentError("{} ranks, expected 1 to {}", ranks, limits::kWorldSizeMax);
  }
  if (sizes.fsdp > 0) {
    const bool alone = sizes.tp == 1 && sizes.pp == 1 && sizes.ep == 1 && !sizes.etp.has_value();
    if (alone) return OkStatus();
    return InvalidArgumentError("fsdp={} excludes tp, pp, ep and etp: expected it alone or with dp",
                                sizes.fsdp);
  }
  DWS_RETURN_IF_ERROR(CheckDivides("attention heads", shape.heads, "tp", sizes.tp));
  const uint64_t more = std::max<uint64_t>(shape.kv_heads, sizes.tp);
  DWS_RETURN_IF_ERROR(CheckDivides("key-value heads or tp ranks", more, "the lesser",
                                   std::min<uint64_t>(shape.kv_heads, sizes.tp)));
  DWS_RETURN_IF_ERROR(CheckDivides("intermediate features", shape.intermediate, "tp", sizes.tp));
  DWS_RETURN_IF_ERROR(CheckDivides("words of the padded vocabulary",
                                   PaddedVocabulary(shape, sizes, is_trainer), "tp", sizes.tp));
  if (sizes.pp > shape.layers) {
    return InvalidArgumentError("pp={} is more than the {} layers", sizes.pp, shape.layers);
  }
  if (shape.experts > 0) return CheckExperts(shape, sizes, is_trainer);
  if (sizes.ep == 1 && sizes.etp.value_or(1) == 1) return OkStatus();
  return InvalidArgumentError("ep={}, etp={}: {} has no experts", sizes.ep, sizes.etp.value_or(1),
                              shape.name);
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
    const uint32_t etp = ExpertTensorSize(sizes, is_trainer);
    layout_.rank_count = leading_.size * inside;
    layout_.meshes = {
        MakeMesh({leading_, {.name = "dp", .size = sizes.dp}, {.name = "tp", .size = sizes.tp}},
                 layout_.rank_count),
        MakeMesh({leading_,
                  {.name = "edp", .size = inside / (sizes.ep * etp)},
                  {.name = "ep", .size = sizes.ep},
                  {.name = "etp", .size = etp}},
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
        const uint64_t words = PaddedVocabulary(shape_, sizes_, is_trainer_);
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

  // gpt-oss. The checkpoint interleaves gate and up; trainers take them apart, engines keep them
  // and turn matrices so that rows are outputs.
  void AddStacked(const Module& module, const FusedTensor& tensor) {
    const uint32_t id = module.tensors[0];
    const size_t dims = tensor.shape.size();
    if (module.role == Role::kStackedRows) {
      // Engines sum what the parts of an expert give, so one of them adds the bias.
      return AddExpert(module, tensor, Shard(0), is_trainer_ ? Replicate() : Owner({0}));
    }
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

MeshLayout FsdpLayout(const ModelTensors& model, const ParallelSizes& sizes) {
  const uint32_t ranks = sizes.dp * sizes.fsdp;
  MeshLayout layout{
      .rank_count = ranks,
      .meshes = {MakeMesh({{.name = "dp", .size = sizes.dp}, {.name = "fsdp", .size = sizes.fsdp}},
                          ranks)}};
  for (uint32_t t = 0; t < model.catalogue.size(); ++t) {
    const CanonicalTensor& tensor = model.catalogue[t];
    layout.tensors.push_back({.name = tensor.name,
                              .dtype = tensor.dtype,
                              .content = Whole(t, tensor.shape),
                              .placements = {Replicate(), Shard(0)}});
  }
  return layout;
}

}  // namespace

Result<MeshLayout> TrainerLayout(const ModelShape& shape, const ModelTensors& model,
                                 const ParallelSizes& sizes) {
  DWS_RETURN_IF_ERROR(Annotate(CheckSizes(shape, sizes, 1, true), "trainer"));
  if (sizes.fsdp > 0) return FsdpLayout(model, sizes);
  return LayoutBuilder(shape, model, sizes, {.name = "pp", .size = sizes.pp}, true).Build();
}

Result<MeshLayout> EngineLayout(const ModelShape& shape, const ModelTensors& model,
                                const ParallelSizes& sizes, uint32_t engines) {
  if (sizes.pp != 1 || sizes.fsdp != 0) {
    return InvalidArgumentError(
        "engine: pp and fsdp are of trainers; engines have tp, dp, ep, etp");
  }
  DWS_RETURN_IF_ERROR(Annotate(CheckSizes(shape, sizes, engines, false), "engine"));
  return LayoutBuilder(shape, model, sizes, {.name = "engine", .size = engines}, false).Build();
}

}  // namespace dws::mesh
