#include "tools/checkpoint/in_place.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/formats/checkpoint/settled.h"
#include "tools/checkpoint/parts/chain_check.h"
#include "tools/checkpoint/parts/encode.h"
#include "tools/checkpoint/parts/object_file.h"
#include "tools/checkpoint/parts/output_check.h"
#include "tools/checkpoint/parts/page_store.h"
#include "tools/checkpoint/parts/tensors.h"

namespace dws::checkpoint {
namespace {

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Step 3 for an existing redo record, and the check before a repetition.
class Replay {
 public:
  Replay(const Walk& walk, const Checkpoint& checkpoint, std::span<const DeltaFile> redo,
         StorePages pages)
      : walk_(walk),
        checkpoint_(checkpoint),
        redo_(redo),
        pages_(pages),
        // Absolute blocks need no old values, so the source works on a half-changed checkpoint.
        source_(walk.layout, BytesOf(checkpoint), redo, walk.pool.worker_count()) {
    for (const SliceDelta& slice : redo[0].manifest().slices) slices_.push_back(slice.slice);
  }

  // Checks that the redo record turns these files into its version, also if some of it is already
  // written. If the files were replaced since, they are left unchanged.
  Status CheckBelongs() {
    DWS_ASSIGN_OR_RETURN(const ChainDigests digests,
                         ReadDigests(walk_, "checking weights", AllSlices(walk_.layout), source_));
    DWS_RETURN_IF_ERROR(digests.decoding);
    std::vector<Digest> after = digests.base;
    for (size_t s = 0; s < after.size(); ++s) after[s] += digests.differences[0][s];
    const std::vector<std::string> wrong = Wrong(after);
    if (wrong.empty() && StateToken(after) == redo_[0].manifest().state_token) return OkStatus();
    judged_ = true;
    return FailedPreconditionError(
        "{} was recorded for another state of {}: other weights of {}; nothing was written; if "
        "the files were replaced since, remove this record",
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

  // Whether the error was about the contents of the files. Its message then says what to do.
  bool judged() const { return judged_; }

 private:
  Status Write(const WalkedBlock& block, size_t worker) {
    DWS_ASSIGN_OR_RETURN(const BlockStates states, source_.Read(block.slice, block.block, worker));
    if (states.before.data() == states.after.data()) return OkStatus();
    const MutableByteSpan tensor = checkpoint_.Writable(checkpoint_.tensors()[block.slice.value()]);
    const auto offset = static_cast<size_t>(states.before.data() - tensor.data());
    StoreBytes(states.after, tensor.subspan(offset, states.after.size()), pages_);
    return OkStatus();
  }

  Status Prove() {
    ChainSource written(walk_.layout, BytesOf(checkpoint_), {}, walk_.pool.worker_count());
    DWS_ASSIGN_OR_RETURN(const ChainDigests digests,
                         ReadDigests(walk_, "proving weights", slices_, written));
    const std::vector<std::string> wrong = Wrong(digests.base);
    if (wrong.empty()) return OkStatus();
    judged_ = true;
    return DataLossError(
        "{} does not hold what was written to it: {}; the checkpoint is neither version, restore "
        "it from a copy and remove {}",
        checkpoint_.files()[0].mapping.path(), NameList(wrong), redo_[0].path());
  }

  // The names of tensors that the redo record writes and that do not have their new digest.
  std::vector<std::string> Wrong(const std::vector<Digest>& found) const {
    return Differing(walk_.layout, redo_[0].manifest(), found, &SliceDelta::after);
  }

  const Walk& walk_;
  const Checkpoint& checkpoint_;
  const std::span<const DeltaFile> redo_;
  const StorePages pages_;
  ChainSource source_;
  std::vector<RankSlice> slices_;
  bool judged_ = false;
};

enum class RedoOf : uint8_t { kThisCall, kEarlierCall };

// One call of ApplyInPlace, under the lock.
class InPlaceApply {
 public:
  InPlaceApply(const Walk& walk, FileSystem& files, const InPlaceRequest& request,
               const Checkpoint& checkpoint)
      : walk_(walk),
        files_(files),
        request_(request),
        checkpoint_(checkpoint),
        redo_path_(RedoPath(request.checkpoint)) {}

  Result<InPlaceOutcome> Run() {
    const Status status = Steps();
    if (status.ok()) return outcome_;
    const Status told =
        outcome_.finished_earlier
            ? Annotate(status, "an interrupted apply has been completed, then this one failed")
            : status;
    if (judged_) return told;
    const Status settled = CheckSettled(request_.checkpoint);
    if (settled.ok()) return told;
    return MakeStatus(told.code(), fmt::format("{}; {}", Message(told), Message(settled)));
  }

 private:
  Status Steps() {
    ObjectFile::RemoveLeftovers(files_, redo_path_);
    if (Exists(redo_path_)) {
      // Complete it even if a receiver has begun to keep the checkpoint: the receiver refuses it
      // while it is half changed.
      DWS_ASSIGN_OR_RETURN(const KeptLocks locks, LockOutReceiver(files_, request_.checkpoint));
      DWS_RETURN_IF_ERROR(ReplayAndRemove(RedoOf::kEarlierCall));
      outcome_.finished_earlier = true;
    } else {
      DWS_RETURN_IF_ERROR(Judged(CheckNotKept(request_.checkpoint)));
    }
    // Looks for the redo records of a file in the folder, or of the folder of the file.
    DWS_RETURN_IF_ERROR(Judged(CheckSettled(request_.checkpoint)));
    DWS_ASSIGN_OR_RETURN(const std::vector<DeltaFile> chain,
                         OpenChain(request_.deltas, walk_.layout));
    ChainSource source(walk_.layout, BytesOf(checkpoint_), chain, walk_.pool.worker_count());
    DWS_ASSIGN_OR_RETURN(const CheckedChain checked, CheckChain(walk_, chain, source));
    outcome_.version = chain.back().manifest().version.value();
    if (checked.already_applied) {
      outcome_.already_applied = true;
      return OkStatus();
    }
    DWS_RETURN_IF_ERROR(Judged(CheckNotKept(request_.checkpoint)));
    DWS_RETURN_IF_ERROR(WriteRedo(chain, source, checked));
    return ReplayAndRemove(RedoOf::kThisCall);
  }

  Status Judged(const Status& status) {
    judged_ = !status.ok();
    return status;
  }

  Status ReplayAndRemove(RedoOf redo_of) {
    {
      const bool earlier = redo_of == RedoOf::kEarlierCall;
      DWS_ASSIGN_OR_RETURN(const DeltaFile redo, DeltaFile::Open(redo_path_, walk_.layout));
      Replay replay(walk_, checkpoint_, std::span(&redo, 1),
                    earlier ? StorePages::kAll : StorePages::kThatDiffer);
      Status status = earlier ? replay.CheckBelongs() : OkStatus();
      if (status.ok()) status = replay.Run();
      judged_ = replay.judged();
      DWS_RETURN_IF_ERROR(status);
    }
    // Rename first, because our Rename is durable. If a power cut brought the redo record back,
    // replaying it would undo later versions.
    const std::string done = redo_path_ + ".tmp";
    DWS_RETURN_IF_ERROR(files_.Rename(redo_path_, done));
    return files_.Remove(done);
  }

  // Step 2. Fills in its part of the outcome.
  Status WriteRedo(std::span<const DeltaFile> chain, ChainSource& source,
                   const CheckedChain& checked) {
    DWS_ASSIGN_OR_RETURN(const std::unique_ptr<ObjectFile> file,
                         ObjectFile::Create(files_, redo_path_));
    const EncodeTarget target{.encoding = Encoding::kAbsolute, .writer = &file->writer()};
    DWS_ASSIGN_OR_RETURN(
        const std::vector<SliceChange> changes,
        EncodeDifference(walk_, "recording what changes", source, std::span(&target, 1)));
    if (DigestsAfter(changes) != checked.after) {
      return AbortedError("the checkpoint changed while it was read; nothing was written to it");
    }
    DeltaManifest identity = chain.back().manifest();
    identity.base_version = chain.front().manifest().base_version;
    for (const SliceChange& change : changes) outcome_.changed_tensors += change.nnz > 0 ? 1 : 0;
    DWS_ASSIGN_OR_RETURN(outcome_.redo_bytes, file->Finish(std::move(identity)));
    return OkStatus();
  }

  const Walk& walk_;
  FileSystem& files_;
  const InPlaceRequest& request_;
  const Checkpoint& checkpoint_;
  const std::string redo_path_;
  InPlaceOutcome outcome_;
  bool judged_ = false;  // the error's message says what to do
};

}  // namespace

Result<InPlaceOutcome> ApplyInPlace(FileSystem& files, const InPlaceRequest& request,
                                    ThreadPool& pool, const Progress& progress) {
  DWS_CHECK(!request.deltas.empty());
  DWS_ASSIGN_OR_RETURN(const Checkpoint checkpoint,
                       Checkpoint::Open(request.checkpoint, FileAccess::kWritable));
  DWS_RETURN_IF_ERROR(CheckNotShared(checkpoint));
  DWS_RETURN_IF_ERROR(
      CheckNotRead(ObjectFile::PathsOf(RedoPath(request.checkpoint)), request.deltas));
  DWS_ASSIGN_OR_RETURN(const RankLayout layout, LayoutOf(checkpoint));
  // Lock a file of the checkpoint itself, so that no lock file stays behind.
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<FileLock> lock,
                       files.Lock(checkpoint.files()[0].mapping.path()));
  const Walk walk{.layout = layout, .pool = pool, .progress = progress};
  return InPlaceApply(walk, files, request, checkpoint).Run();
}

}  // namespace dws::checkpoint
