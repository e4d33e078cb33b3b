// Words are read in their order; whatever does not fit fails the stream, which is checked once a
// line.
#include "tools/bench/layouts/layout_job.h"

#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "common/model/limits.h"

namespace dws::bench {
namespace {

constexpr size_t kListMax = 1 << 20;

const std::map<std::string, DType, std::less<>> kDTypes = {{"BF16", DType::kBF16},
                                                           {"F32", DType::kF32}};

class JobReader {
 public:
  explicit JobReader(const std::string& path) : in_(path) {}

  Result<LayoutJob> Read() {
    if (!in_) return NotFoundError("no such file");
    for (std::string kind; in_ >> kind; ++line_) {
      const auto known = lines_.find(kind);
      if (known == lines_.end()) return Wrong();
      known->second();
      if (!in_) return Wrong();
    }
    Exclude();
    return std::move(job_);
  }

 private:
  Status Wrong() const { return InvalidArgumentError("line {} is not as expected", line_); }

  // Fails the stream unless `number` is below `end`.
  size_t Below(size_t end) {
    size_t number = 0;
    if (!(in_ >> number) || number >= end) in_.setstate(std::ios::failbit);
    return in_ ? number : 0;
  }

  template <typename T>
  std::vector<T> List(const std::function<T()>& item) {
    std::vector<T> items;
    const size_t count = Below(kListMax);
    while (in_ && items.size() < count) items.push_back(item());
    return items;
  }

  template <typename T>
  T Number() {
    T number = 0;
    in_ >> number;
    return number;
  }

  void Job() {
    uint32_t ranks = 0;
    in_ >> job_.model >> job_.shares_seconds >> job_.engines >> ranks >> job_.host_ranks;
    if (in_ && (job_.host_ranks == 0 || ranks % job_.host_ranks != 0 || ranks > kListMax)) {
      in_.setstate(std::ios::failbit);
    }
    if (in_) job_.engine.resize(ranks);
  }

  void Tensor() {
    TensorSpec& spec = tensors_.emplace_back();
    std::string dtype;
    in_ >> spec.name >> dtype;
    const auto known = kDTypes.find(dtype);
    if (known == kDTypes.end()) return in_.setstate(std::ios::failbit);
    spec.dtype = known->second;
    spec.shape = List<uint64_t>([this] { return Number<uint64_t>(); });
    spec.cuts = List<Cuts>([this] {
      const auto dim = Number<uint32_t>();
      return Cuts{.dim = dim, .at = List<uint64_t>([this] { return Number<uint64_t>(); })};
    });
  }

  void Holders() {
    job_.holders.push_back(List<uint32_t>([this] { return Number<uint32_t>(); }));
  }

  void AddShard() {
    const size_t rank = Below(limits::kWorldSizeMax);
    const size_t tensor = Below(tensors_.size());
    const size_t holders = Below(job_.holders.size());
    if (!in_) return;
    if (rank >= job_.trainer.size()) job_.trainer.resize(rank + 1);
    job_.trainer[rank].holders.push_back(static_cast<uint32_t>(holders));
    Shard shard{.tensor = tensors_[tensor], .cells = List<CellRange>([this] {
                                              const auto first = Number<uint32_t>();
                                              return CellRange{.first = first,
                                                               .count = Number<uint32_t>()};
                                            })};
    job_.trainer[rank].shards.push_back(std::move(shard));
  }

  void View() {
    const size_t number = Below(job_.engine.size());
    const size_t tensor = Below(tensors_.size());
    if (!in_) return;
    LayoutJob::EngineRank& rank = job_.engine[number];
    const TensorSpec& spec = tensors_[tensor];
    EngineView view{.engine_name = spec.name,
                    .tensor = spec.name,
                    .dtype = spec.dtype,
                    .ranges = {},
                    .shape = spec.shape,
                    .strides = {},
                    .offset_bytes = rank.region_bytes};
    view.ranges = List<ViewRange>([this, &spec] {
      const auto dim = static_cast<uint32_t>(Below(spec.shape.size()));
      const auto begin = Number<uint64_t>();
      return ViewRange{.dim = dim, .range = {.begin = begin, .end = Number<uint64_t>()}};
    });
    if (!in_) return;
    for (const ViewRange& each : view.ranges) view.shape[each.dim] = each.range.size();
    view.strides = RowMajorStrides(view.shape);
    uint64_t bytes = ElementBytes(spec.dtype);
    for (const uint64_t extent : view.shape) bytes *= extent;
    rank.region_bytes += CeilDiv(bytes, sizeof(uint64_t)) * sizeof(uint64_t);
    rank.views.push_back(std::move(view));
  }

  void Exclude() {
    for (size_t first = 0; first < job_.engine.size(); first += job_.host_ranks) {
      std::set<std::string_view> held;
      for (size_t rank = first; rank < first + job_.host_ranks; ++rank) {
        for (const EngineView& view : job_.engine[rank].views) held.insert(view.tensor);
      }
      for (const TensorSpec& spec : tensors_) {
        if (!held.contains(spec.name)) job_.engine[first].excluded.push_back(spec.name);
      }
    }
  }

  std::ifstream in_;
  size_t line_ = 1;
  LayoutJob job_;
  std::vector<TensorSpec> tensors_;
  const std::map<std::string, std::function<void()>, std::less<>> lines_ = {
      {"job", [this] { Job(); }},         {"tensor", [this] { Tensor(); }},
      {"holders", [this] { Holders(); }}, {"shard", [this] { AddShard(); }},
      {"view", [this] { View(); }},
  };
};

}  // namespace

Result<LayoutJob> ReadLayoutJob(const std::string& path) {
  Result<LayoutJob> job = JobReader(path).Read();
  if (!job.ok()) return Annotate(job.status(), path);
  return job;
}

}  // namespace dws::bench
