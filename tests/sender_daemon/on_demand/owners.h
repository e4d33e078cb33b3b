// A sharded model, all its ranks' senders, and the gather of one of them.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "sender_daemon/on_demand/gather/gather.h"
#include "sender_daemon/on_demand/rank_gathers.h"
#include "tests/fakes/eventually.h"
#include "tests/sender_daemon/on_demand/owner.h"
#include "tests/sender_daemon/on_demand/silent_listener.h"

namespace dws {

// A model: whole tensors, and how the ranks share them.
struct ShardedModel {
  std::vector<TensorSpec> tensors;  // ascending by name
  std::vector<RankLayout> layouts;  // by rank

  // Tensors of several types and 1 to 3 dimensions, cut at random along one of them, over `ranks`
  // ranks, some of which have nothing of some tensors.
  static ShardedModel Random(std::mt19937_64& random, uint32_t ranks) {
    const auto below = [&](uint64_t bound) { return random() % bound; };
    ShardedModel model;
    std::vector<std::vector<Shard>> shards(ranks);
    const uint64_t count = 3 + below(5);
    for (uint64_t t = 0; t < count; ++t) {
      static constexpr DType kTypes[] = {DType::kBF16, DType::kF32, DType::kU8};
      TensorSpec spec{.name = fmt::format("t{:02}", t), .dtype = kTypes[below(3)], .shape = {}};
      switch (below(4)) {
        case 0:
          spec.shape = {1 + below(200'000)};
          break;
        case 1:
          spec.shape = {1 + below(300), 1 + below(700)};
          break;
        case 2:
          spec.shape = {1 + below(20), 1 + below(90), 1 + below(90)};
          break;
        case 3:
          spec.shape = {below(2), 5};  // perhaps empty
          break;
      }
      // Inner dimensions of three-dimensional tensors have two levels of stride.
      const auto dim = static_cast<uint32_t>(spec.shape.size() == 2 ? below(2) : 0);
      std::vector<uint64_t> at;
      for (uint32_t r = 1; r < ranks && spec.shape[dim] > 1; ++r) {
        at.push_back(1 + below(spec.shape[dim] - 1));
      }
      std::ranges::sort(at);
      at.erase(std::unique(at.begin(), at.end()), at.end());
      if (!at.empty()) spec.cuts = {{.dim = dim, .at = at}};
      model.tensors.push_back(spec);
      // Cells go to ranks in order; a rank may get none, or several.
      uint32_t next = 0;
      for (uint32_t r = 0; r < ranks; ++r) {
        const uint32_t left = spec.SliceCount() - next;
        const auto cells = static_cast<uint32_t>(r + 1 == ranks ? left : below(left + 1));
        if (cells == 0) continue;
        CellBox box;
        if (!spec.cuts.empty()) box = {{next, cells}};
        shards[r].push_back({.tensor = spec, .cells = std::move(box)});
        next += cells;
      }
    }
    for (uint32_t r = 0; r < ranks; ++r) {
      if (!shards[r].empty()) continue;  // a layout has at least one tensor
      const TensorSpec own{.name = fmt::format("z{}", r), .dtype = DType::kU8, .shape = {r}};
      model.tensors.push_back(own);
      shards[r].push_back(Shard::Whole(own));
    }
    for (auto& owned : shards) model.layouts.push_back(MakeLayout(std::move(owned)));
    return model;
  }

  // The bytes of each whole tensor.
  std::vector<std::vector<std::byte>> RandomTensors(std::mt19937_64& random) const {
    std::vector<std::vector<std::byte>> whole;
    for (const TensorSpec& spec : tensors) {
      std::vector<std::byte> bytes(spec.SizeBytes());
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
      whole.push_back(std::move(bytes));
    }
    return whole;
  }

  // What a rank has of them, element by element.
  Weights Shares(uint32_t rank, const std::vector<std::vector<std::byte>>& whole) const {
    const RankLayout& layout = layouts[rank];
    Weights weights;
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      const TensorSpec& spec = layout.tensor(RankSlice(s));
      const auto found = std::ranges::find(tensors, spec.name, &TensorSpec::name);
      const auto& bytes = whole[static_cast<size_t>(found - tensors.begin())];
      const std::vector<DimRange> box = spec.Slice(layout.slices()[s].slice);
      const std::vector<uint64_t> strides = RowMajorStrides(spec.shape);
      const size_t size = ElementBytes(spec.dtype);
      std::vector<std::byte> slice;
      const uint64_t elements = layout.slices()[s].elements;
      for (uint64_t e = 0; e < elements; ++e) {
        uint64_t left = e;
        uint64_t at = 0;
        for (size_t dim = box.size(); dim-- > 0;) {
          at += (box[dim].begin + left % box[dim].size()) * strides[dim];
          left /= box[dim].size();
        }
        const auto from = bytes.begin() + static_cast<ptrdiff_t>(at * size);
        slice.insert(slice.end(), from, from + static_cast<ptrdiff_t>(size));
      }
      weights.push_back(std::move(slice));
    }
    return weights;
  }
};

// All ranks of a model, and the gather of one of them.
class Owners {
 public:
  struct Opening {
    OwnerLinks::Options links;
    Gather::Options gather;
  };

  Owners(ShardedModel model, uint64_t seed) : model_(std::move(model)), random_(seed) {
    const auto world = static_cast<uint32_t>(model_.layouts.size());
    for (uint32_t r = 0; r < world; ++r) {
      owners_.push_back(
          std::make_unique<Owner>(Owner::Options{.rank = r, .world = world}, model_.layouts[r]));
    }
  }

  // New weights of all tensors, published by all ranks, or by those that `who` says.
  void Publish(uint64_t version) {
    Draw(version);
    for (uint32_t r = 0; r < owners_.size(); ++r) PublishOf(r, version);
  }
  void Draw(uint64_t version) {
    if (versions_.size() <= version) versions_.resize(version + 1);
    versions_[version] = model_.RandomTensors(random_);
  }
  // The version before with `count` other bytes in each tensor, published by all ranks.
  void PublishLike(uint64_t version, uint32_t count) {
    versions_.push_back(versions_[version - 1]);
    for (auto& tensor : versions_[version]) {
      for (uint32_t i = 0; i < count; ++i) tensor[random_() % tensor.size()] ^= std::byte{1};
    }
    for (uint32_t r = 0; r < owners_.size(); ++r) PublishOf(r, version);
  }
  void PublishOf(uint32_t rank, uint64_t version) {
    owners_[rank]->Publish(version, model_.Shares(rank, versions_[version]));
  }
  Weights SharesOf(uint32_t rank, uint64_t version) const {
    return model_.Shares(rank, versions_[version]);
  }

  // All tensors in one unit, in an order of its own; and each in one.
  std::vector<UnitSpec> Units() {
    std::vector<UnitSpec> units{{.name = "all", .tensors = {}}};
    for (const TensorSpec& spec : model_.tensors) {
      units[0].tensors.push_back(spec.name);
      units.push_back({.name = "only " + spec.name, .tensors = {spec.name}});
    }
    std::shuffle(units[0].tensors.begin(), units[0].tensors.end(), random_);
    return units;
  }
  Opening Options(std::optional<std::string> only = std::nullopt) {
    Opening options;
    options.links.job_id = "job";
    options.gather = {.units = Units(),
                      .only = std::move(only),
                      .fabric = {.on = true, .only = FabricProvider::kTcp},
                      .spool_folder = folder_.path()};
    for (const auto& owner : owners_) options.links.addresses.push_back(owner->address());
    return options;
  }
  // Its connections last as long as this object.
  Result<std::unique_ptr<Gather>> TryOpen(Opening options) {
    DWS_ASSIGN_OR_RETURN(auto links, OwnerLinks::Create(options.links, listener_, clock_));
    links_.push_back(std::move(links));
    return Gather::Create(std::move(options.gather), *links_.back(), pool_, clock_);
  }
  std::unique_ptr<Gather> Open(Opening options) {
    auto gather = TryOpen(std::move(options));
    REQUIRE(gather.ok());
    return *std::move(gather);
  }
  // The gathers of a rank with this arena.
  Result<std::unique_ptr<RankGathers>> OpenRank(Opening options, HostRegion arena) {
    DWS_ASSIGN_OR_RETURN(auto links, OwnerLinks::Create(options.links, listener_, clock_));
    links_.push_back(std::move(links));
    return RankGathers::Create({.stream = At(1).stream, .gather = std::move(options.gather)},
                               std::move(arena), *links_.back(), pool_, clock_);
  }
  Gather::Wanted In(std::chrono::milliseconds time) const {
    return {.deadline = clock_.Now() + time};
  }
  void CheckBytes(Gather& gather, const UnitAt& unit, ByteSpan bytes) {
    CHECK(HasBytes(gather, unit, bytes));
  }
  // Returns whether `bytes` has the tensors of the unit as its owners published them. Threads: any.
  bool HasBytes(Gather& gather, const UnitAt& unit, ByteSpan bytes) {
    const auto plan = gather.Plan(unit.unit, unit.at.stream, In(std::chrono::seconds(20)));
    if (!plan.ok()) return false;
    for (const UnitPlan::Tensor& tensor : (*plan)->tensors()) {
      const auto found = std::ranges::find(model_.tensors, tensor.name, &TensorSpec::name);
      const auto& expected =
          versions_[unit.at.version.value()][static_cast<size_t>(found - model_.tensors.begin())];
      const ByteSpan got = bytes.subspan(tensor.first_byte, tensor.size_bytes);
      if (!std::ranges::equal(got, expected)) return false;
    }
    return true;
  }
  // Gathers the unit, and checks its bytes if that succeeds.
  Status Run(Gather& gather, uint32_t unit, uint64_t version,
             std::chrono::milliseconds time = std::chrono::seconds(20)) {
    const UnitAt at{.unit = UnitIndex(unit), .at = At(version)};
    const auto plan = gather.Plan(at.unit, at.at.stream, In(time));
    if (!plan.ok()) return plan.status();
    std::vector<std::byte> bytes((*plan)->size_bytes());
    const Status status = gather.Run(at, bytes, In(time));
    if (status.ok()) CheckBytes(gather, at, bytes);
    return status;
  }
  static VersionAt At(uint64_t version) {
    return {.stream = kTrainStream, .version = WeightVersion(version)};
  }

  Owner& owner(uint32_t rank) { return *owners_[rank]; }
  // Another sender serves the rank, at another address.
  void Replace(uint32_t rank, const Owner::Options& options) {
    owners_[rank] = std::make_unique<Owner>(options, model_.layouts[rank]);
  }
  const ShardedModel& model() const { return model_; }
  size_t size() const { return owners_.size(); }
  const Clock& clock() const { return clock_; }

 private:
  const ShardedModel model_;
  std::mt19937_64 random_;
  TempFolder folder_;
  RealClock clock_;
  ThreadPool pool_{1};
  std::vector<std::vector<std::vector<std::byte>>> versions_;  // by version, by tensor
  std::vector<std::unique_ptr<Owner>> owners_;
  SilentListener listener_;
  std::vector<std::unique_ptr<OwnerLinks>> links_;
};

}  // namespace dws
