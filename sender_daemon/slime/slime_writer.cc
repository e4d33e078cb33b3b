#include "sender_daemon/slime/slime_writer.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/model/limits.h"
#include "sender_daemon/slime/slime_folder.h"
#include "sender_daemon/slime/tensor_reader.h"

namespace dws {
namespace {

Status CheckTensor(const Shard& shard, slime::Encoding encoding) {
  const TensorSpec& tensor = shard.tensor;
  if (!shard.IsWhole()) {
    return FailedPreconditionError(
        "slime's versions hold whole tensors, and this rank has {} of the {} slices of tensor "
        "'{}': publish from a trainer whose ranks have whole tensors, or without --slime-dir",
        ToString(tensor, shard.cells), tensor.SliceCount(), tensor.name);
  }
  if (!safetensors::FileDTypeNamed(ToString(tensor.dtype)).has_value()) {
    return FailedPreconditionError("tensor '{}' is {}, for which safetensors has no name",
                                   tensor.name, ToString(tensor.dtype));
  }
  if (encoding == slime::Encoding::kOverwrite && tensor.SizeBytes() > uint64_t{1} << 32) {
    return FailedPreconditionError(
        "tensor '{}' has {} bytes, and slime's encoding overwrite reaches 4 GiB: start with "
        "--slime-encoding=xor",
        tensor.name, tensor.SizeBytes());
  }
  return OkStatus();
}

// The shards that a delta changes.
std::vector<uint32_t> TouchedShards(const RankLayout& layout, const DeltaManifest& manifest) {
  std::vector<uint32_t> shards;
  for (const SliceDelta& delta : manifest.slices) {
    const uint32_t shard = layout.slice(delta.slice).shard;
    DWS_CHECK(shards.empty() || shards.back() <= shard);
    if (shards.empty() || shards.back() != shard) shards.push_back(shard);
  }
  return shards;
}

// Returns how many workers may run at a time. A tensor whose slices are not whole rows is in memory
// four times.
size_t WorkersFor(const RankLayout& layout, const std::vector<uint32_t>& shards) {
  uint64_t largest = 1;
  for (const uint32_t shard : shards) {
    const TensorSpec& tensor = layout.shards()[shard].tensor;
    if (!SlicesAreRows(tensor)) largest = std::max(largest, tensor.SizeBytes());
  }
  return std::max<uint64_t>(limits::kSlimeWholeBytesMax / (4 * largest), 1);
}

// The shards divided into `count` shares of about the same size.
std::vector<std::vector<uint32_t>> Shares(const RankLayout& layout, std::vector<uint32_t> shards,
                                          size_t count) {
  const auto size_of = [&](uint32_t shard) { return layout.shards()[shard].tensor.SizeBytes(); };
  std::stable_sort(shards.begin(), shards.end(),
                   [&](uint32_t a, uint32_t b) { return size_of(a) > size_of(b); });
  std::vector<std::vector<uint32_t>> shares(std::clamp<size_t>(count, 1, shards.size() + 1));
  std::vector<uint64_t> filled(shares.size());
  for (const uint32_t shard : shards) {
    const auto least = std::min_element(filled.begin(), filled.end());
    shares[static_cast<size_t>(least - filled.begin())].push_back(shard);
    *least += size_of(shard);
  }
  return shares;
}

// The shards in the order in which their tensors are written.
std::vector<uint32_t> PlannedShards(const RankLayout& layout, const slime::ShardPlan& plan) {
  std::vector<uint32_t> shards;
  for (const auto& file : plan) {
    for (const safetensors::HeaderTensor& tensor : file) {
      // An empty tensor has a slice as well.
      const std::optional<RankSlice> first = layout.Find(tensor.name, 0);
      DWS_CHECK(first.has_value());
      shards.push_back(layout.slice(*first).shard);
    }
  }
  DWS_CHECK(shards.size() == layout.shards().size());
  return shards;
}

}  // namespace

SlimeWriter::SlimeWriter(FileSystem& files, Options options, RankStatePtr state,
                         slime::ShardPlan plan, std::function<bool()> wanted)
    : files_(files),
      options_(std::move(options)),
      state_(std::move(state)),
      plan_(std::move(plan)),
      wanted_(std::move(wanted)) {}

Result<SlimeWriter> SlimeWriter::Create(FileSystem& files, const Options& options,
                                        RankStatePtr state, std::function<bool()> wanted) {
  std::vector<safetensors::HeaderTensor> tensors;
  for (const Shard& shard : state->layout().shards()) {
    DWS_RETURN_IF_ERROR(CheckTensor(shard, options.encoding));
    tensors.push_back({.name = shard.tensor.name,
                       .dtype = safetensors::FileDTypeOf(shard.tensor.dtype),
                       .shape = shard.tensor.shape});
  }
  DWS_ASSIGN_OR_RETURN(slime::ShardPlan plan,
                       slime::PlanShards(std::move(tensors), options.full_shard_bytes_max));
  return SlimeWriter(files, options, std::move(state), std::move(plan), std::move(wanted));
}

std::map<std::string, std::string> SlimeWriter::Extra() const {
  return {{slime::kStreamKey, SlimeStreamName(*state_)}};
}

std::string SlimeWriter::WriterName(const Publication& publication) const {
  return publication.part.empty() ? SlimeWriterName(*state_) : publication.part;
}

Result<uint64_t> SlimeWriter::WriteDelta(const RetainedVersionPtr& version,
                                         const Publication& publication) {
  DWS_CHECK(version->base.has_value() && version->base->value() + 1 == version->version.value());
  return WriteEntries(version, TouchedShards(state_->layout(), version->manifest), nullptr,
                      publication);
}

Result<uint64_t> SlimeWriter::WriteFromBase(const RetainedVersionPtr& version,
                                            const safetensors::Checkpoint& base,
                                            const Publication& publication) {
  DWS_CHECK(version->version == WeightVersion(1));
  std::vector<uint32_t> shards(state_->layout().shards().size());
  std::iota(shards.begin(), shards.end(), 0);
  const auto unchanged = [&base, &publication]() -> Status {
    DWS_RETURN_IF_ERROR(base.CheckUnchanged());
    return publication.may_publish ? publication.may_publish() : OkStatus();
  };
  return WriteEntries(version, shards, &base, {.may_publish = unchanged, .part = publication.part});
}

Result<uint64_t> SlimeWriter::WriteEntries(const RetainedVersionPtr& version,
                                           const std::vector<uint32_t>& shards,
                                           const safetensors::Checkpoint* base,
                                           const Publication& publication) {
  damaged_ = false;
  DWS_ASSIGN_OR_RETURN(
      const std::unique_ptr<slime::VersionWriter> writer,
      slime::VersionWriter::Create(files_, options_.root,
                                   {.version = version->version.value(),
                                    .writer = WriterName(publication),
                                    .encoding = options_.encoding,
                                    .checksum = options_.checksum,
                                    .shard_bytes_max = options_.delta_shard_bytes_max,
                                    .unchanged_too = base != nullptr,
                                    .extra = Extra(),
                                    .may_publish = publication.may_publish,
                                    .part = !publication.part.empty()}));
  const RankLayout& layout = state_->layout();
  const size_t workers = options_.pool == nullptr ? 1 : options_.pool->worker_count();
  const auto shares = Shares(layout, shards, std::min(workers, WorkersFor(layout, shards)));
  std::vector<Status> results(shares.size());
  const auto add = [&](size_t index, size_t) {
    results[index] = AddTensors(version, shares[index], base, *writer);
  };
  if (options_.pool == nullptr) {
    add(0, 0);
  } else {
    options_.pool->ParallelFor(shares.size(), add);
  }
  for (const Status& result : results) damaged_ = damaged_ || absl::IsDataLoss(result);
  for (const Status& result : results) DWS_RETURN_IF_ERROR(result);
  DWS_ASSIGN_OR_RETURN(const slime::VersionSummary summary, writer->Finish());
  return summary.entry_bytes;
}

Status SlimeWriter::AddTensors(const RetainedVersionPtr& version,
                               const std::vector<uint32_t>& shards,
                               const safetensors::Checkpoint* base,
                               slime::VersionWriter& writer) const {
  TensorReader reader(state_, version, shards, wanted_);
  for (const uint32_t shard : shards) {
    const TensorSpec& tensor = state_->layout().shards()[shard].tensor;
    DWS_ASSIGN_OR_RETURN(slime::EntryBuilder entry,
                         writer.NewEntry(tensor.name, tensor.SizeBytes()));
    const auto add = [&entry](ByteSpan before, ByteSpan after) { entry.Add(before, after); };
    if (base == nullptr) {
      DWS_RETURN_IF_ERROR(reader.NextChange(add));
    } else {
      const safetensors::CheckpointTensor& there = *base->Find(tensor.name);
      const auto read = [&](uint64_t offset, MutableByteSpan to) -> Status {
        const Status got = base->Read(there, offset, to);
        if (got.ok()) return got;
        return AbortedError("{} cannot be read: {}", base->path(), Message(got));
      };
      DWS_RETURN_IF_ERROR(reader.NextChangeFrom(read, add));
    }
    const Status added = writer.Add(tensor.name, std::move(entry));
    // A disk that loses data is not damage of our memory.
    if (absl::IsDataLoss(added)) return UnavailableError("{}", Message(added));
    DWS_RETURN_IF_ERROR(added);
  }
  return OkStatus();
}

Result<uint64_t> SlimeWriter::WriteFull(const RetainedVersionPtr& version,
                                        const Publication& publication) {
  damaged_ = false;
  TensorReader reader(state_, version, PlannedShards(state_->layout(), plan_), wanted_);
  return slime::WriteFullVersion(files_, options_.root,
                                 {.version = version->version.value(),
                                  .writer = WriterName(publication),
                                  .extra = Extra(),
                                  .side_files = options_.side_files,
                                  .may_publish = publication.may_publish,
                                  .part = !publication.part.empty()},
                                 plan_, [&](const safetensors::HeaderTensor&) {
                                   Result<ByteSpan> bytes = reader.Next();
                                   damaged_ = absl::IsDataLoss(bytes.status());
                                   return bytes;
                                 });
}

}  // namespace dws
