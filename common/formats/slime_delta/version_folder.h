// A published version folder: its index and headers, read and checked as a whole before anything
// else is read. The tensors are read later, piece by piece.
//
// A reader can see a folder that is only partly written. A folder without an index is not published
// yet, whatever shards it has, except a full checkpoint whose only file of weights is
// model.safetensors: no writer of the format gives that name to a shard, and the file's header
// shows whether all its bytes are there. (A reader that looks by itself should also wait until the
// file no longer changes.) If a shard that the index names is missing, this machine does not see
// the whole folder yet. Both are UNAVAILABLE and can be tried again; neither is ever used as a
// checkpoint. A folder may also be replaced, or removed and written again, while it is read. So it
// is opened once, read relative to that descriptor, and checked again at the end (held_folder.h); a
// folder that has changed is UNAVAILABLE as well.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/held_folder.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/entry_stream.h"
#include "common/formats/slime_delta/version_index.h"

namespace dws::slime {

// A tensor of a version.
struct VersionEntry {
  std::string name;
  // The digest of the tensor's new bytes: in a delta in the version's checksum format, in a full
  // checkpoint xxh3-128.
  std::string digest;
};

// The versions with a folder in `folder`, published or not, ascending. Errors of the file system.
Result<std::vector<uint64_t>> ListVersions(FileSystem& files, const std::string& folder);

// Like ListVersions(path), for an open folder.
Result<std::vector<uint64_t>> ListVersions(const HeldFolder& folder);

// Returns the stamp of the file that publishes a version: its index, or model.safetensors of a full
// checkpoint without one; nullopt: there is no such file.
Result<std::optional<FileStamp>> StampOfVersion(const HeldFolder& versions, uint64_t version);

// Reads the index of a version folder; of a full checkpoint without one, an index without tensors.
// UNAVAILABLE: not published yet. Others: as ParseVersionIndex.
Result<VersionIndex> ReadVersionIndex(FileSystem& files, const std::string& version_folder,
                                      const safetensors::ClaimLimits& claims = {});

// An open version folder. Lifecycle: open until destroyed; spans become invalid then, but stay
// valid when it is moved. Threads: safe from any.
class VersionFolder {
 public:
  // UNAVAILABLE: not published yet, a shard is missing (the message names it), or the folder was
  // changed while it was read. DATA_LOSS: an index that does not match the shards, a tensor in two
  // shards, a shard that the index does not name, a missing or malformed digest, a tensor of a full
  // checkpoint that is not its stated digest's, an entry that is not a list of U8. Others: as
  // ParseVersionIndex and Checkpoint::Open.
  static Result<VersionFolder> Open(const std::string& version_folder);
  // Opens one of the versions in a folder, which must be a version of `local` (fit.h).
  // FAILED_PRECONDITION: it is of another model. NOT_FOUND: there is no such version.
  static Result<VersionFolder> Open(const HeldFolder& versions, uint64_t version,
                                    const safetensors::Checkpoint& local);

  // Repeats the check at the end of Open, after tensors have been read. UNAVAILABLE: the folder has
  // changed since.
  Status CheckUnchanged() const { return folder_.CheckUnchanged(); }

  const VersionIndex& index() const { return index_; }
  // By name; of a delta the changed tensors.
  const std::vector<VersionEntry>& entries() const { return entries_; }
  // Returns the bytes of one of entries(): for a delta its compressed payload (payload.h),
  // otherwise the tensor. The source refers to this object.
  EntrySource SourceOf(const VersionEntry& entry) const;
  // The shards; for a full checkpoint these are the weights. Null for a delta without changes.
  const safetensors::Checkpoint* checkpoint() const {
    return checkpoint_ ? &*checkpoint_ : nullptr;
  }
  // Distinguishes this version from one of the same number that another run of the trainer wrote.
  // It covers only this version; lineage.h chains it with the versions before.
  const std::string& identity() const { return identity_; }
  // The stamp of the file that publishes it, as StampOfVersion.
  const FileStamp& index_stamp() const;
  // Returns whether the version changes any tensor.
  bool changes() const { return checkpoint_.has_value(); }

 private:
  explicit VersionFolder(HeldFolder folder) : folder_(std::move(folder)) {}
  static Result<VersionFolder> OpenHeld(HeldFolder folder, const safetensors::Checkpoint* local);
  Status Read(const safetensors::Checkpoint* local);
  // For a full checkpoint without an index.
  Status ReadSingle(const safetensors::ClaimLimits& claims);
  // UNAVAILABLE: the folder no longer has the files `listed`, or the index `text`.
  Status CheckSame(const std::vector<std::string>& listed,
                   const std::optional<std::vector<std::byte>>& text);
  Status ReadEntries();
  Status ReadOf(const safetensors::CheckpointTensor& tensor, uint64_t offset,
                MutableByteSpan to) const;
  Result<std::string> DigestOf(const safetensors::CheckpointTensor& tensor) const;
  // The xxh3-128 of a tensor of a full checkpoint, once it was compared with its stated digest.
  Result<std::string> DigestOfWhole(const safetensors::CheckpointTensor& tensor) const;
  // The digest that the tensor's shard has of it. DATA_LOSS: it has none in this format.
  Result<std::string> StatedDigest(const safetensors::CheckpointTensor& tensor,
                                   ChecksumFormat format) const;

  HeldFolder folder_;
  VersionIndex index_;
  bool single_ = false;                                // without an index
  std::optional<safetensors::Checkpoint> checkpoint_;  // nullopt: a delta without changes
  std::vector<VersionEntry> entries_;
  std::string identity_;
};

}  // namespace dws::slime
