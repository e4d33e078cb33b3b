#include "common/formats/slime_delta/local/write_down.h"

#include <utility>

#include "common/formats/slime_delta/checksum.h"
#include "common/formats/slime_delta/payload.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

using safetensors::CheckpointTensor;

// What is wrong with one tensor of a version. Workers return it instead of stopping at the first
// problem, so that one message can name all tensors.
enum class Verdict : uint8_t { kGood, kMissing, kOtherBase };

struct Outcome {
  Verdict verdict = Verdict::kGood;
  Status status;
};

// For a changed tensor of a delta.
Outcome WriteDownEntry(const VersionEntry& entry, const DeltaDescription& delta,
                       const CheckpointTensor* tensor, VersionWriter& redo) {
  if (tensor == nullptr) return {.verdict = Verdict::kMissing};
  Result<std::vector<std::byte>> payload =
      DecodeEntry(delta.encoding, entry.bytes, tensor->bytes.size());
  if (!payload.ok()) return {.status = payload.status()};
  std::vector<std::byte> after(tensor->bytes.begin(), tensor->bytes.end());
  const Status applied = ApplyPayload(delta.encoding, *payload, after);
  if (!applied.ok()) return {.status = applied};
  if (ChecksumText(delta.checksum, after) == entry.digest) {
    return {.status = redo.Add(entry.name, tensor->bytes, after)};
  }
  const bool done = ChecksumText(delta.checksum, tensor->bytes) == entry.digest;
  return {.verdict = done ? Verdict::kGood : Verdict::kOtherBase};
}

// For a tensor of a full checkpoint.
Outcome WriteDownFull(const CheckpointTensor& after, const CheckpointTensor* tensor,
                      VersionWriter& redo) {
  if (tensor == nullptr || tensor->dtype != after.dtype || tensor->shape != after.shape) {
    return {.verdict = Verdict::kMissing};
  }
  return {.status = redo.Add(after.name, tensor->bytes, after.bytes)};
}

Status Judge(const std::vector<Outcome>& outcomes, const std::vector<std::string>& names,
             const std::string& version) {
  std::vector<std::string> missing;
  std::vector<std::string> other_base;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].status.ok()) {
      return Annotate(outcomes[i].status,
                      fmt::format("version {}, tensor '{}'", version, names[i]));
    }
    if (outcomes[i].verdict == Verdict::kMissing) missing.push_back(names[i]);
    if (outcomes[i].verdict == Verdict::kOtherBase) other_base.push_back(names[i]);
  }
  if (!missing.empty()) {
    return FailedPreconditionError(
        "version {}: the local checkpoint lacks these tensors, or has them with another shape: {}",
        version, ShortList(missing));
  }
  if (!other_base.empty()) {
    return FailedPreconditionError(
        "version {}: not a delta of what is here: these tensors would not get the digests it "
        "states: {}",
        version, ShortList(other_base));
  }
  return OkStatus();
}

}  // namespace

std::string ShortList(std::vector<std::string> names) {
  const size_t count = names.size();
  if (count > limits::kTensorsNamedMax) names.resize(limits::kTensorsNamedMax);
  std::string text = fmt::format("{}", fmt::join(names, ", "));
  if (count > names.size()) text += fmt::format(" and {} more", count - names.size());
  return text;
}

Status WriteDown(const VersionFolder& version, const safetensors::Checkpoint& checkpoint,
                 ThreadPool& pool, VersionWriter& redo) {
  const bool full = !version.index().delta.has_value();
  std::vector<std::string> names;
  if (full) {
    for (const CheckpointTensor& tensor : version.checkpoint()->tensors()) {
      names.push_back(tensor.name);
    }
  } else {
    for (const VersionEntry& entry : version.entries()) names.push_back(entry.name);
  }
  std::vector<Outcome> outcomes(names.size());
  pool.ParallelFor(names.size(), [&](size_t index, size_t) {
    const CheckpointTensor* const tensor = checkpoint.Find(names[index]);
    outcomes[index] =
        full ? WriteDownFull(version.checkpoint()->tensors()[index], tensor, redo)
             : WriteDownEntry(version.entries()[index], *version.index().delta, tensor, redo);
  });
  const std::string text = VersionText(version.index().version);
  DWS_RETURN_IF_ERROR(Judge(outcomes, names, text));
  if (!full || names.size() == checkpoint.tensors().size()) return OkStatus();
  return FailedPreconditionError(
      "version {}: a full checkpoint of {} tensors, the local checkpoint has {}", text,
      names.size(), checkpoint.tensors().size());
}

}  // namespace dws::slime
