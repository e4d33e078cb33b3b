#include "common/formats/slime_delta/local/write_down.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/formats/slime_delta/local/changed_tensor.h"
#include "common/formats/slime_delta/local/mapped_windows.h"
#include "common/formats/slime_delta/payload.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

using safetensors::Checkpoint;
using safetensors::CheckpointTensor;

// The problem with one tensor, if any. Workers return it instead of stopping at the first problem,
// so that one message can name all tensors.
enum class Verdict : uint8_t { kGood, kMissing, kOtherBase, kDamaged };

struct Outcome {
  Verdict verdict = Verdict::kGood;
  Status status = {};
};

// One tensor to look at: an entry of the version, or a tensor that the version does not change.
struct Item {
  const VersionEntry* entry = nullptr;
  const CheckpointTensor* tensor = nullptr;

  const std::string& name() const { return entry != nullptr ? entry->name : tensor->name; }
  uint64_t size_bytes() const { return tensor != nullptr ? tensor->size_bytes : 0; }
};

// The largest first, so that no thread begins one when the others are done.
std::vector<Item> ItemsOf(const WriteDownFrom& from) {
  std::vector<Item> items;
  for (const VersionEntry& entry : from.version.entries()) {
    items.push_back({.entry = &entry, .tensor = from.checkpoint.Find(entry.name)});
  }
  if (from.digests != nullptr) {
    const auto by_name = [](const Item& item, const std::string& name) {
      return item.name() < name;
    };
    const size_t entries = items.size();
    for (const CheckpointTensor& tensor : from.checkpoint.tensors()) {
      const auto end = items.begin() + static_cast<std::ptrdiff_t>(entries);
      const auto found = std::lower_bound(items.begin(), end, tensor.name, by_name);
      if (found == end || found->name() != tensor.name) items.push_back({.tensor = &tensor});
    }
  }
  std::stable_sort(items.begin(), items.end(),
                   [](const Item& a, const Item& b) { return a.size_bytes() > b.size_bytes(); });
  return items;
}

// Computes the tensors of one version, on several threads.
class Worker {
 public:
  Worker(const WriteDownFrom& from, VersionWriter& redo) : from_(from), redo_(redo) {}

  Outcome Do(const Item& item) const {
    if (item.tensor == nullptr) return {.verdict = Verdict::kMissing};
    if (item.entry == nullptr) {
      return {.verdict = Damaged(*item.tensor) ? Verdict::kDamaged : Verdict::kGood};
    }
    return Change(*item.entry, *item.tensor);
  }

 private:
  // The checksums of a tensor after the version.
  struct Digests {
    std::string stated;  // in the format of the entry's digest
    std::string xxh3;
  };

  ChecksumFormat format() const {
    const auto& delta = from_.version.index().delta;
    return delta.has_value() ? delta->checksum : ChecksumFormat::kXxh3;
  }

  bool Damaged(const CheckpointTensor& tensor) const {
    if (from_.digests == nullptr) return false;
    const auto known = from_.digests->find(tensor.name);
    return known == from_.digests->end() ||
           known->second != ChecksumOf(from_.checkpoint, tensor, ChecksumFormat::kXxh3);
  }

  // `runs` is null if the redo record takes the entry unchanged.
  Result<Digests> Read(const EntrySource& entry, const CheckpointTensor& tensor,
                       RunsWriter* runs) const {
    Checksum stated(format());
    std::optional<Checksum> xxh3;
    if (format() != ChecksumFormat::kXxh3) xxh3.emplace(ChecksumFormat::kXxh3);
    DWS_RETURN_IF_ERROR(ForEachChangedWindow(
        from_.version.index(), entry, from_.checkpoint, tensor, [&](const ChangedWindow& window) {
          stated.Update(window.after);
          if (xxh3.has_value()) xxh3->Update(window.after);
          if (runs == nullptr) return;
          for (const ByteRun& run : window.runs) {
            runs->Add(window.offset + run.offset, window.after.subspan(run.offset, run.size_bytes));
          }
        }));
    std::string text = stated.Text();
    std::string redo_text = xxh3.has_value() ? xxh3->Text() : text;
    return Digests{.stated = std::move(text), .xxh3 = std::move(redo_text)};
  }

  Outcome Change(const VersionEntry& entry, const CheckpointTensor& tensor) const {
    const bool as_it_is = EncodingOfRedo(from_.version.index()) != Encoding::kRuns;
    EntrySource source = from_.version.SourceOf(entry);
    // The record gets the same bytes whose digest is compared: they are read once.
    std::vector<std::byte> bytes(as_it_is ? source.size_bytes : 0);
    if (as_it_is) {
      if (const Status read = source.read(0, bytes); !read.ok()) return {.status = read};
      source = MemorySource(bytes);
    }
    RunsWriter runs;
    const Result<Digests> after = Read(source, tensor, as_it_is ? nullptr : &runs);
    if (!after.ok()) return {.status = after.status()};
    if (after->stated == entry.digest) {
      const bool weak = format() == ChecksumFormat::kAdler32;
      if (weak && Damaged(tensor)) return {.verdict = Verdict::kDamaged};
      if (as_it_is) {
        return {.status = redo_.AddCompressed(entry.name, after->xxh3, std::move(bytes))};
      }
      return {.status = redo_.AddRuns(entry.name, after->xxh3, runs.Take())};
    }
    if (!from_.version.index().delta.has_value()) {
      return {.status = UnavailableError("was changed while it was read: read it again")};
    }
    if (Damaged(tensor)) return {.verdict = Verdict::kDamaged};
    const bool done = ChecksumOf(from_.checkpoint, tensor, format()) == entry.digest;
    return {.verdict = done ? Verdict::kGood : Verdict::kOtherBase};
  }

  const WriteDownFrom& from_;
  VersionWriter& redo_;
};

std::vector<std::string> NamesOf(const std::vector<Item>& items,
                                 const std::vector<Outcome>& outcomes, Verdict verdict) {
  std::vector<std::string> names;
  for (size_t i = 0; i < items.size(); ++i) {
    if (outcomes[i].verdict == verdict) names.push_back(items[i].name());
  }
  std::sort(names.begin(), names.end());
  return names;
}

Status Judge(const WriteDownFrom& from, const std::vector<Item>& items,
             const std::vector<Outcome>& outcomes) {
  const VersionIndex& index = from.version.index();
  const std::string version = VersionText(index.version);
  DWS_RETURN_IF_ERROR(CheckNoneDamaged(from.checkpoint, index.version - 1,
                                       NamesOf(items, outcomes, Verdict::kDamaged)));
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].status.ok()) {
      return Annotate(outcomes[i].status,
                      fmt::format("version {}, tensor '{}'", version, items[i].name()));
    }
  }
  if (auto missing = NamesOf(items, outcomes, Verdict::kMissing); !missing.empty()) {
    return FailedPreconditionError("version {}: the local checkpoint lacks these tensors: {}",
                                   version, ShortList(std::move(missing)));
  }
  if (auto other_base = NamesOf(items, outcomes, Verdict::kOtherBase); !other_base.empty()) {
    return FailedPreconditionError(
        "version {}: not a delta of the local checkpoint: these tensors would not get the digests "
        "it states: {}",
        version, ShortList(std::move(other_base)));
  }
  return OkStatus();
}

}  // namespace

Encoding EncodingOfRedo(const VersionIndex& version) {
  const bool overwrite =
      version.delta.has_value() && version.delta->encoding == Encoding::kOverwrite;
  return overwrite ? Encoding::kOverwrite : Encoding::kRuns;
}

std::string ShortList(std::vector<std::string> names) {
  const size_t count = names.size();
  if (count > limits::kTensorsNamedMax) names.resize(limits::kTensorsNamedMax);
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (count > names.size()) text += fmt::format(" and {} more", count - names.size());
  return text;
}

Status CheckNoneDamaged(const Checkpoint& checkpoint, uint64_t version,
                        std::vector<std::string> damaged) {
  if (damaged.empty()) return OkStatus();
  return DataLossError("{}: these tensors have changed since version {} was applied: {}",
                       checkpoint.path(), VersionText(version), ShortList(std::move(damaged)));
}

std::string ChecksumOf(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                       ChecksumFormat format) {
  Checksum checksum(format);
  const Status done =
      ForEachMappedWindow(checkpoint, tensor, [&](uint64_t offset, uint64_t size_bytes) {
        checksum.Update(tensor.bytes.subspan(offset, size_bytes));
        return OkStatus();
      });
  DWS_CHECK(done.ok());
  return checksum.Text();
}

Status WriteDown(const WriteDownFrom& from, ThreadPool& pool, VersionWriter& redo) {
  const std::vector<Item> items = ItemsOf(from);
  std::vector<Outcome> outcomes(items.size());
  const Worker worker(from, redo);
  pool.ParallelFor(items.size(),
                   [&](size_t index, size_t) { outcomes[index] = worker.Do(items[index]); });
  DWS_RETURN_IF_ERROR(from.checkpoint.CheckIntact());
  DWS_RETURN_IF_ERROR(Judge(from, items, outcomes));
  const size_t entries = from.version.entries().size();
  const size_t tensors = from.checkpoint.tensors().size();
  if (from.version.index().delta.has_value() || entries == tensors) return OkStatus();
  return FailedPreconditionError(
      "version {}: a full checkpoint of {} tensors, the local checkpoint has {}",
      VersionText(from.version.index().version), entries, tensors);
}

}  // namespace dws::slime
