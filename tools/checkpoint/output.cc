#include "tools/checkpoint/output.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "common/formats/checkpoint/settled.h"
#include "common/formats/mapped_file.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "tools/checkpoint/parts/output_check.h"

namespace dws::checkpoint {
namespace {

std::string TemporaryPath(const std::string& path) { return path + ".tmp"; }

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string PartialPath(const std::string& out) {
  return fmt::format("{}.partial-{}", out, ::getpid());
}

// Writes one file: the weights, and the other bytes before, between and after them.
class FileWriter {
 public:
  FileWriter(const Walk& walk, const OutputPlan& plan, ChainSource& source, AppendFile& file)
      : walk_(walk), plan_(plan), source_(source), file_(file) {}

  Status Write(uint32_t number) {
    const ByteSpan bytes = plan_.base.files()[number].mapping.bytes();
    std::vector<RankSlice> slices;
    for (uint32_t s = 0; s < plan_.base.tensors().size(); ++s) {
      const CheckpointTensor& tensor = plan_.base.tensors()[s];
      if (tensor.file == number && !tensor.bytes.empty()) slices.emplace_back(s);
    }
    std::sort(slices.begin(), slices.end(),
              [this](RankSlice a, RankSlice b) { return Tensor(a).offset < Tensor(b).offset; });
    window_.resize(static_cast<size_t>(kWindowBytesMax + limits::kBlockElements * 8));
    DWS_RETURN_IF_ERROR(WalkBlocks(
        walk_, plan_.base.files()[number].name, slices,
        [this](const WalkedBlock& block, size_t worker) { return Patch(block, worker); },
        [this, bytes](std::span<const WalkedBlock> window) { return Deliver(window, bytes); }));
    return file_.Append(bytes.subspan(written_));
  }

 private:
  const CheckpointTensor& Tensor(RankSlice slice) const {
    return plan_.base.tensors()[slice.value()];
  }

  Status Patch(const WalkedBlock& block, size_t worker) {
    DWS_ASSIGN_OR_RETURN(const BlockStates states, source_.Read(block.slice, block.block, worker));
    std::copy(states.after.begin(), states.after.end(),
              window_.begin() + static_cast<ptrdiff_t>(block.offset));
    // Take the digest of the bytes that are written, not of those that were read, so that a change
    // in between is noticed.
    digests_[block.index] =
        DigestBytes(ByteSpan(window_).subspan(block.offset, block.size_bytes),
                    walk_.layout.slice(block.slice).BlockFirstWord(block.block));
    return OkStatus();
  }

  Status Deliver(std::span<const WalkedBlock> window, ByteSpan bytes) {
    for (const WalkedBlock& block : window) {
      const CheckpointTensor& tensor = Tensor(block.slice);
      if (block.block == 0) {
        DWS_RETURN_IF_ERROR(file_.Append(bytes.subspan(written_, tensor.offset - written_)));
        written_ = tensor.offset;
        digest_ = Digest();
      }
      DWS_RETURN_IF_ERROR(file_.Append(ByteSpan(window_).subspan(block.offset, block.size_bytes)));
      written_ += block.size_bytes;
      digest_ += digests_[block.index];
      const bool last = block.block + 1 == walk_.layout.slice(block.slice).blocks;
      if (last && digest_ != plan_.after[block.slice.value()]) {
        return AbortedError("tensor '{}' of {} changed while it was read", tensor.name,
                            plan_.base_path);
      }
    }
    return OkStatus();
  }

  const Walk& walk_;
  const OutputPlan& plan_;
  ChainSource& source_;
  AppendFile& file_;
  uint64_t written_ = 0;  // bytes of the file so far
  Digest digest_;         // of the tensor that is being written
  std::vector<std::byte> window_;
  std::array<Digest, kWindowBlocksMax> digests_;
};

Status WriteWeights(const Walk& walk, FileSystem& files, const OutputPlan& plan,
                    ChainSource& source, uint32_t number, const std::string& path) {
  const std::string temporary = TemporaryPath(path);
  Status written;
  {
    DWS_ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, files.Create(temporary));
    written = FileWriter(walk, plan, source, *file).Write(number);
    if (written.ok()) written = file->Sync();
  }
  if (written.ok()) written = plan.base.files()[number].mapping.CheckUnchanged();
  if (written.ok()) written = files.Rename(temporary, path);
  if (!written.ok()) static_cast<void>(files.Remove(temporary));  // report the first error
  return written;
}

// Temporary files that killed commands and receivers leave in a folder.
bool IsLeftover(std::string_view name) { return name.ends_with(".tmp"); }

// Copies the files of the folder that are not weights. Weights that the index does not name are not
// copied.
Status CopyOthers(FileSystem& files, const std::string& from, const std::string& to) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(from));
  for (const std::string& name : names) {
    const std::string path = from + "/" + name;
    std::error_code error;
    if (safetensors::IsShardName(name) || IsLeftover(name)) continue;
    if (!std::filesystem::is_regular_file(path, error)) continue;
    DWS_ASSIGN_OR_RETURN(const MappedFile mapping, MappedFile::Open(path, FileAccess::kReadOnly));
    const std::string temporary = TemporaryPath(to + "/" + name);
    {
      DWS_ASSIGN_OR_RETURN(const std::unique_ptr<AppendFile> file, files.Create(temporary));
      DWS_RETURN_IF_ERROR(file->Append(mapping.bytes()));
      DWS_RETURN_IF_ERROR(file->Sync());
    }
    DWS_RETURN_IF_ERROR(files.Rename(temporary, to + "/" + name));
  }
  return OkStatus();
}

Status FillFolder(const Walk& walk, FileSystem& files, const OutputPlan& plan, ChainSource& source,
                  const std::string& folder) {
  for (uint32_t f = 0; f < plan.base.files().size(); ++f) {
    DWS_RETURN_IF_ERROR(
        WriteWeights(walk, files, plan, source, f, folder + "/" + plan.base.files()[f].name));
  }
  return CopyOthers(files, plan.base_path, folder);
}

}  // namespace

Status CheckOutput(const std::string& out) {
  std::error_code ignored;
  if (!std::filesystem::exists(std::filesystem::symlink_status(out, ignored))) return OkStatus();
  if (std::filesystem::is_directory(out, ignored) && std::filesystem::is_empty(out, ignored)) {
    return OkStatus();
  }
  return AlreadyExistsError("{} exists already; a checkpoint is written to a new place", out);
}

Status CheckApart(const std::string& out, std::span<const std::string> read) {
  const std::string path = WithoutSlash(out);
  return CheckNotRead(std::array{path, TemporaryPath(path), PartialPath(path)}, read);
}

Status WriteOutput(const Walk& walk, FileSystem& files, const OutputPlan& plan,
                   ChainSource& source) {
  DWS_RETURN_IF_ERROR(CheckOutput(plan.out));
  const std::string out = WithoutSlash(plan.out);
  std::error_code error;
  if (!std::filesystem::is_directory(plan.base_path, error)) {
    return WriteWeights(walk, files, plan, source, 0, out);
  }
  const std::string partial = PartialPath(out);
  // Process ids are reused, in containers soon. Remove what a killed process has left here.
  std::filesystem::remove_all(partial, error);
  if (error) return ErrnoError(error.value(), fmt::format("cannot remove {}", partial));
  DWS_RETURN_IF_ERROR(files.MakeFolders(partial));
  Status written = FillFolder(walk, files, plan, source, partial);
  if (written.ok()) written = CheckUnchanged(plan.base);  // again, after all files are copied
  if (written.ok()) written = files.Rename(partial, out);
  if (!written.ok()) std::filesystem::remove_all(partial, error);
  return written;
}

}  // namespace dws::checkpoint
