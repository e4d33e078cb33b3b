// A published version folder, read and checked as a whole before anything of it is used.
//
// Who reads what somebody else is writing sees halves of it: a folder without an index is not
// published yet, whatever shards it has; a folder with an index whose shard is missing is one that
// this machine does not see all of yet. Both are UNAVAILABLE, to be asked for again. Neither is
// ever a checkpoint. And a folder may be exchanged for another, or removed and written again, in
// the middle of being read: it is opened once, read relative to that, and looked at again in the
// end (held_folder.h); what has changed is UNAVAILABLE as well.
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
#include "common/formats/slime_delta/version_index.h"

namespace dws::slime {

// A changed tensor.
struct VersionEntry {
  std::string name;
  std::string digest;  // of the tensor's new bytes, in the version's checksum format
  ByteSpan bytes;      // one compressed payload: DecodeEntry
};

// The versions with a folder in `folder`, published or not, ascending. Errors of the file system.
Result<std::vector<uint64_t>> ListVersions(FileSystem& files, const std::string& folder);

// The same of a folder that is open.
Result<std::vector<uint64_t>> ListVersions(const HeldFolder& folder);

// The index in a version folder. UNAVAILABLE: not published yet. Others: as ParseVersionIndex.
Result<VersionIndex> ReadVersionIndex(FileSystem& files, const std::string& version_folder);

// Lifecycle: open until destroyed; spans end with it and survive a move. Threads: safe from any.
class VersionFolder {
 public:
  // UNAVAILABLE: not published yet, a shard is missing (the message names it), or the folder was
  // changed while it was read. DATA_LOSS: an index that is not exact, a tensor in two shards, a
  // shard that the index does not know, a missing or malformed digest, an entry that is no U8 list.
  // Others: as ParseVersionIndex and Checkpoint::Open. Copies by default: the writer may remove the
  // folder at any time.
  static Result<VersionFolder> Open(const std::string& version_folder,
                                    FileAccess access = FileAccess::kCopied);
  // One of the versions in a folder. NOT_FOUND: there is none.
  static Result<VersionFolder> Open(const HeldFolder& versions, uint64_t version);

  // Again as Open has asked it in the end. UNAVAILABLE: changed by now.
  Status CheckUnchanged() const { return folder_.CheckUnchanged(); }

  const VersionIndex& index() const { return index_; }
  // Of a delta, by name; empty for a full checkpoint.
  const std::vector<VersionEntry>& entries() const { return entries_; }
  // The files; of a full checkpoint, the weights.
  const safetensors::Checkpoint* checkpoint() const {
    return checkpoint_ ? &*checkpoint_ : nullptr;
  }
  // What tells this version from one of the same number that another run of the trainer wrote.
  // Of itself alone: whose it is say the versions before it as well (lineage.h).
  const std::string& identity() const { return identity_; }
  // Of its index's file.
  const FileStamp& index_stamp() const;
  // Some tensor is another after it.
  bool changes() const { return checkpoint_.has_value(); }

 private:
  explicit VersionFolder(HeldFolder folder) : folder_(std::move(folder)) {}
  static Result<VersionFolder> OpenHeld(HeldFolder folder, FileAccess access);
  Status Read(FileAccess access);
  Status ReadEntries();

  HeldFolder folder_;
  VersionIndex index_;
  std::optional<safetensors::Checkpoint> checkpoint_;  // nullopt: a delta without changes
  std::vector<VersionEntry> entries_;
  std::string identity_;
};

}  // namespace dws::slime
