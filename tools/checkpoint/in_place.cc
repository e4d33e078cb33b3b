#include "tools/checkpoint/in_place.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/delta/decoder.h"
#include "common/delta/diff.h"
#include "tools/checkpoint/chain_check.h"
#include "tools/checkpoint/encode.h"
#include "tools/checkpoint/object_file.h"
#include "tools/checkpoint/settled.h"
#include "tools/checkpoint/tensors.h"

namespace dws::checkpoint {
namespace {

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Steps 3 and 4, for a redo that is there.
class Replay {
 public:
  Replay(const Walk& walk, const Checkpoint& checkpoint, std::span<const DeltaFile> redo)
      : walk_(walk),
        checkpoint_(checkpoint),
        redo_(redo),
        // Absolute blocks need no old ones: the source reads them alone.
        source_(walk.layout, BytesOf(checkpoint), redo, walk.pool.worker_count()) {
    for (const SliceDelta& slice : redo[0].manifest().slices) slices_.push_back(slice.slice);
  }

  // Whether the checkpoint becomes a version with what is written down: the one it was for, with
  // any part of it written. Files that somebody put in its place since are left alone.
  Status CheckBelongs() {
    DWS_ASSIGN_OR_RETURN(const std::vector<Digest> sums,
                         Sums("checking weights", AllSlices(walk_.layout),
                              [this](const WalkedBlock& block, size_t worker) -> Result<ByteSpan> {
                                DWS_ASSIGN_OR_RETURN(
                                    const BlockStates states,
                                    source_.Read(block.slice, block.block, worker));
                                return states.after;
                              }));
    const std::vector<std::string> wrong = Wrong(sums);
    if (wrong.empty() && StateToken(sums) == redo_[0].manifest().state_token) return OkStatus();
    return FailedPreconditionError(
        "{} was written down for another state of {}: other weights of {}; nothing was written; if "
        "the files were replaced since, remove it",
        redo_[0].path(), checkpoint_.files()[0].mapping.path(),
        wrong.empty() ? "tensors that it does not change" : NameList(wrong));
  }

  Status Run() {
    DWS_RETURN_IF_ERROR(WalkBlocks(
        walk_, "writing weights", slices_,
        [this](const WalkedBlock& block, size_t worker) { return Write(block, worker); },
        [](std::span<const WalkedBlock>) { return OkStatus(); }));
    DWS_RETURN_IF_ERROR(checkpoint_.Sync());
    return Prove();
  }

 private:
  Status Write(const WalkedBlock& block, size_t worker) {
    DWS_ASSIGN_OR_RETURN(const BlockStates states, source_.Read(block.slice, block.block, worker));
    if (states.before.data() == states.after.data()) return OkStatus();
    const MutableByteSpan tensor = checkpoint_.Writable(checkpoint_.tensors()[block.slice.value()]);
    const ptrdiff_t offset = states.before.data() - tensor.data();
    // A page that keeps its bytes is not written: pages are what the disk is given.
    constexpr size_t kPiece = 4096;
    for (size_t at = 0; at < states.after.size(); at += kPiece) {
      const size_t count = std::min(kPiece, states.after.size() - at);
      const auto piece = states.after.subspan(at, count);
      if (std::equal(piece.begin(), piece.end(), states.before.subspan(at, count).begin()))
        continue;
      std::copy(piece.begin(), piece.end(), tensor.begin() + offset + static_cast<ptrdiff_t>(at));
    }
    return OkStatus();
  }

  Status Prove() {
    DWS_ASSIGN_OR_RETURN(const std::vector<Digest> sums,
                         Sums("proving weights", slices_,
                              [this](const WalkedBlock& block, size_t) -> Result<ByteSpan> {
                                return source_.Before(block.slice, block.block);
                              }));
    const std::vector<std::string> wrong = Wrong(sums);
    if (wrong.empty()) return OkStatus();
    return DataLossError(
        "{} does not hold what was written to it: {}; the checkpoint is neither version, take it "
        "from elsewhere and remove {}",
        checkpoint_.files()[0].mapping.path(), NameList(wrong), redo_[0].path());
  }

  // The digests of `slices`, by number, of the bytes that `read` gives for their blocks.
  Result<std::vector<Digest>> Sums(
      std::string_view step, std::span<const RankSlice> slices,
      const std::function<Result<ByteSpan>(const WalkedBlock&, size_t worker)>& read) {
    std::vector<Digest> digests(kWindowBlocksMax);
    std::vector<Digest> sums(walk_.layout.slice_count());
    DWS_RETURN_IF_ERROR(WalkBlocks(
        walk_, step, slices,
        [&](const WalkedBlock& block, size_t worker) {
          DWS_ASSIGN_OR_RETURN(const ByteSpan bytes, read(block, worker));
          digests[block.index] =
              DigestBytes(bytes, walk_.layout.slice(block.slice).BlockFirstWord(block.block));
          return OkStatus();
        },
        [&](std::span<const WalkedBlock> window) {
          for (const WalkedBlock& block : window) {
            sums[block.slice.value()] += digests[block.index];
          }
          return OkStatus();
        }));
    return sums;
  }

  // Names of tensors that are to be written and are not what they are to become.
  std::vector<std::string> Wrong(const std::vector<Digest>& sums) const {
    std::vector<std::string> wrong;
    for (const SliceDelta& slice : redo_[0].manifest().slices) {
      if (sums[slice.slice.value()] == slice.after) continue;
      wrong.push_back(walk_.layout.tensor(slice.slice).name);
    }
    return wrong;
  }

  const Walk& walk_;
  const Checkpoint& checkpoint_;
  const std::span<const DeltaFile> redo_;
  ChainSource source_;
  std::vector<RankSlice> slices_;
};

enum class RedoOf : uint8_t { kThisCall, kEarlierCall };

Status ReplayAndRemove(const Walk& walk, FileSystem& files, const Checkpoint& checkpoint,
                       const std::string& path, RedoOf redo_of) {
  {
    DWS_ASSIGN_OR_RETURN(const DeltaFile redo, DeltaFile::Open(path, walk.layout));
    Replay replay(walk, checkpoint, std::span(&redo, 1));
    if (redo_of == RedoOf::kEarlierCall) DWS_RETURN_IF_ERROR(replay.CheckBelongs());
    DWS_RETURN_IF_ERROR(replay.Run());
  }
  // Renamed first, which is durable: a redo that a power cut brought back would undo what the
  // checkpoint became since.
  const std::string done = path + ".tmp";
  DWS_RETURN_IF_ERROR(files.Rename(path, done));
  return files.Remove(done);
}

// Step 2. Fills in what there is to tell of it.
Status WriteRedo(const Walk& walk, FileSystem& files, const std::string& path,
                 std::span<const DeltaFile> chain, ChainSource& source, const CheckedChain& checked,
                 InPlaceOutcome& outcome) {
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectFile> file, ObjectFile::Create(files, path));
  const EncodeTarget target{.encoding = Encoding::kAbsolute, .writer = &file->writer()};
  DWS_ASSIGN_OR_RETURN(
      const std::vector<SliceChange> changes,
      EncodeDifference(walk, "writing down what changes", source, std::span(&target, 1)));
  if (DigestsAfter(changes) != checked.after) {
    return AbortedError("the checkpoint changed while it was read; nothing was written to it");
  }
  DeltaManifest identity = chain.back().manifest();
  identity.base_version = chain.front().manifest().base_version;
  for (const SliceChange& change : changes) outcome.changed_tensors += change.nnz > 0 ? 1 : 0;
  DWS_ASSIGN_OR_RETURN(outcome.redo_bytes, file->Finish(std::move(identity)));
  return OkStatus();
}

// All four steps, of a checkpoint that is locked.
Result<InPlaceOutcome> ApplyLocked(const Walk& walk, FileSystem& files,
                                   const InPlaceRequest& request, const Checkpoint& checkpoint) {
  const std::string redo = RedoPath(request.checkpoint);
  InPlaceOutcome outcome;
  ObjectFile::RemoveLeftovers(files, redo);
  if (Exists(redo)) {
    DWS_RETURN_IF_ERROR(ReplayAndRemove(walk, files, checkpoint, redo, RedoOf::kEarlierCall));
    outcome.finished_earlier = true;
  }
  DWS_RETURN_IF_ERROR(CheckSettled(request.checkpoint));  // of a file in it, of the folder of it
  DWS_ASSIGN_OR_RETURN(const std::vector<DeltaFile> chain, OpenChain(request.deltas, walk.layout));
  ChainSource source(walk.layout, BytesOf(checkpoint), chain, walk.pool.worker_count());
  DWS_ASSIGN_OR_RETURN(const CheckedChain checked, CheckChain(walk, chain, source));
  outcome.version = chain.back().manifest().version.value();
  if (checked.already_applied) {
    outcome.already_applied = true;
    return outcome;
  }
  DWS_RETURN_IF_ERROR(WriteRedo(walk, files, redo, chain, source, checked, outcome));
  DWS_RETURN_IF_ERROR(ReplayAndRemove(walk, files, checkpoint, redo, RedoOf::kThisCall));
  return outcome;
}

}  // namespace

Result<InPlaceOutcome> ApplyInPlace(FileSystem& files, const InPlaceRequest& request,
                                    ThreadPool& pool, const Progress& progress) {
  DWS_CHECK(!request.deltas.empty());
  DWS_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                       Checkpoint::Open(request.checkpoint, FileAccess::kWritable));
  DWS_RETURN_IF_ERROR(CheckChangeable(request.checkpoint, checkpoint));
  DWS_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(checkpoint));
  // A file of the checkpoint is the lock: nothing else is left behind.
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock,
                       files.Lock(checkpoint.files()[0].mapping.path()));
  const Walk walk{.layout = layout, .pool = pool, .progress = progress};
  const Result<InPlaceOutcome> outcome = ApplyLocked(walk, files, request, checkpoint);
  // Of what does not belong together, or is lost, the message says all there is to do.
  if (outcome.ok() || absl::IsFailedPrecondition(outcome.status()) ||
      absl::IsDataLoss(outcome.status())) {
    return outcome;
  }
  const Status settled = CheckSettled(request.checkpoint);
  if (settled.ok()) return outcome;
  return MakeStatus(outcome.status().code(),
                    fmt::format("{}; {}", Message(outcome.status()), Message(settled)));
}

}  // namespace dws::checkpoint
