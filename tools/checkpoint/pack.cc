#include "tools/checkpoint/pack.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/delta/objects/object.h"
#include "common/delta/squash.h"
#include "common/formats/checkpoint/settled.h"
#include "tools/checkpoint/parts/chain_check.h"
#include "tools/checkpoint/parts/encode.h"
#include "tools/checkpoint/parts/object_file.h"
#include "tools/checkpoint/parts/output_check.h"

namespace dws::checkpoint {
namespace {

Encoding EncodingOf(DeltaProfile profile) {
  switch (profile) {
    case DeltaProfile::kFast:
      return Encoding::kFast;
    case DeltaProfile::kWan:
      return Encoding::kWan;
    case DeltaProfile::kDirect:
      return Encoding::kDirect;
  }
  return Encoding::kFast;
}

struct ObjectPlan {
  const std::string& out;
  DeltaProfile profile = DeltaProfile::kFast;
  DeltaManifest identity;  // without the state token
  // Checks that the inputs did not change while they were read, and that the digests `after` are
  // right.
  std::function<Status(const std::vector<Digest>& after)> check;
};

// Encodes the changes between the two states of `source`.
Result<PackedObject> WriteObject(const Walk& walk, FileSystem& files, BlockSource& source,
                                 ObjectPlan plan) {
  DeltaManifest& identity = plan.identity;
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectFile> file, ObjectFile::Create(files, plan.out));
  const EncodeTarget target{.encoding = EncodingOf(plan.profile), .writer = &file->writer()};
  DWS_ASSIGN_OR_RETURN(const std::vector<SliceChange> changes,
                       EncodeDifference(walk, "encoding", source, std::span(&target, 1)));
  const std::vector<Digest> after = DigestsAfter(changes);
  DWS_RETURN_IF_ERROR(plan.check(after));
  PackedObject packed{.base_version = identity.base_version.value(),
                      .version = identity.version.value(),
                      .elements = walk.layout.element_count(),
                      .model_bytes = walk.layout.size_bytes()};
  for (const SliceChange& change : changes) {
    packed.changed_tensors += change.nnz > 0 ? 1 : 0;
    packed.changed_elements += change.nnz;
  }
  identity.layout_signature = walk.layout.signature();
  identity.state_token = StateToken(after);
  DWS_ASSIGN_OR_RETURN(packed.object_bytes, file->Finish(std::move(identity)));
  return packed;
}

}  // namespace

Result<PackedObject> Pack(FileSystem& files, const Checkpoint& a, const Checkpoint& b,
                          const PackOptions& options, const std::string& out, ThreadPool& pool,
                          const Progress& progress) {
  if (options.version <= options.base_version) {
    return InvalidArgumentError("version {} must be above its base version {}", options.version,
                                options.base_version);
  }
  std::vector<std::string> read = PathsOf(a);
  for (const std::string& path : PathsOf(b)) read.push_back(path);
  DWS_RETURN_IF_ERROR(CheckObjectOutput(out, read));
  TensorPairs pairs = MatchTensors(a, b);
  if (!pairs.mismatches.empty()) {
    std::vector<std::string> names;
    for (const TensorMismatch& mismatch : pairs.mismatches) names.push_back(mismatch.name);
    return FailedPreconditionError(
        "a delta needs the same tensors in A and B; {} have no counterpart: {} ('{}' is {})",
        names.size(), NameList(names), names[0], pairs.mismatches[0].what);
  }
  DWS_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(pairs.before));
  const Walk walk{.layout = layout, .pool = pool, .progress = progress};
  PairSource source(layout, std::move(pairs.before), std::move(pairs.after));
  DeltaManifest identity{.version = WeightVersion(options.version),
                         .base_version = WeightVersion(options.base_version)};
  const auto check = [&](const std::vector<Digest>& /*after*/) {
    DWS_RETURN_IF_ERROR(CheckUnchanged(a));
    return CheckUnchanged(b);
  };
  return WriteObject(
      walk, files, source,
      {.out = out, .profile = options.profile, .identity = std::move(identity), .check = check});
}

Result<PackedObject> SquashOver(FileSystem& files, const Checkpoint& base,
                                std::span<const std::string> deltas, DeltaProfile profile,
                                const std::string& out, ThreadPool& pool,
                                const Progress& progress) {
  DWS_CHECK(!deltas.empty());
  std::vector<std::string> read = PathsOf(base);
  read.insert(read.end(), deltas.begin(), deltas.end());
  DWS_RETURN_IF_ERROR(CheckObjectOutput(out, read));
  DWS_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(base));
  const Walk walk{.layout = layout, .pool = pool, .progress = progress};
  DWS_ASSIGN_OR_RETURN(const std::vector<DeltaFile> chain, OpenChain(deltas, layout));
  ChainSource source(layout, BytesOf(base), chain, pool.worker_count());
  DWS_ASSIGN_OR_RETURN(const CheckedChain checked, CheckChain(walk, chain, source));
  // With deltas that change nothing, base and result are equal, so "already applied" is no error.
  const bool changes = std::any_of(chain.begin(), chain.end(), [](const DeltaFile& delta) {
    return !delta.manifest().slices.empty();
  });
  if (checked.already_applied && changes) {
    return FailedPreconditionError(
        "the checkpoint is version {} already, expected version {}, which the deltas begin with",
        chain.back().manifest().version.value(), chain.front().manifest().base_version.value());
  }
  DeltaManifest identity = chain.back().manifest();
  identity.base_version = chain.front().manifest().base_version;
  const auto check = [&](const std::vector<Digest>& after) {
    DWS_RETURN_IF_ERROR(CheckUnchanged(base));
    if (after == checked.after) return OkStatus();
    return AbortedError("{} was changed while it was read: do it again when nobody changes it",
                        base.path());
  };
  return WriteObject(
      walk, files, source,
      {.out = out, .profile = profile, .identity = std::move(identity), .check = check});
}

Result<PackedObject> SquashAlone(FileSystem& files, const RankLayout& layout,
                                 std::span<const std::string> deltas, const std::string& out,
                                 const Progress& progress) {
  DWS_CHECK(!deltas.empty());
  DWS_RETURN_IF_ERROR(CheckObjectOutput(out, deltas));
  DWS_ASSIGN_OR_RETURN(const std::vector<DeltaFile> chain, OpenChain(deltas, layout));
  ProgressStep step{.step = "adding up steps"};
  std::vector<DeltaLink> links;
  for (const DeltaFile& delta : chain) {
    for (const SliceDelta& slice : delta.manifest().slices) {
      for (const FrameEntry& frame : slice.frames) step.total_bytes += frame.size_bytes;
    }
    links.push_back({.manifest = &delta.manifest(),
                     .frame = [&](const FrameEntry& entry,
                                  std::vector<std::byte>& /*buffer*/) -> Result<ByteSpan> {
                       DWS_RETURN_IF_ERROR(progress(step));
                       step.done_bytes += entry.size_bytes;
                       return delta.Frame(entry);
                     }});
  }
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> object, Squash(layout, links));
  DWS_RETURN_IF_ERROR(progress(step));
  DWS_ASSIGN_OR_RETURN(const DeltaManifest manifest, ParseObjectManifest(object, layout));
  PackedObject packed{.base_version = manifest.base_version.value(),
                      .version = manifest.version.value(),
                      .elements = layout.element_count(),
                      .model_bytes = layout.size_bytes(),
                      .object_bytes = object.size()};
  std::set<uint32_t> shards;  // one per tensor; a tensor has one or more slices
  for (const SliceDelta& slice : manifest.slices) {
    shards.insert(layout.slice(slice.slice).shard);
    packed.changed_elements += slice.nnz;
  }
  packed.changed_tensors = shards.size();
  DWS_RETURN_IF_ERROR(files.ReplaceFile(out, object));
  return packed;
}

}  // namespace dws::checkpoint
