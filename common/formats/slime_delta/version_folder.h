// A published version folder, read and checked as a whole before anything of it is used.
//
// Who reads what somebody else is writing sees halves of it: a folder without an index is not
// published yet, whatever shards it has; a folder with an index whose shard is missing is one that
// this machine does not see all of yet. Both are UNAVAILABLE, to be asked for again. Neither is
// ever a checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
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

// The index in a version folder. UNAVAILABLE: not published yet. Others: as ParseVersionIndex.
Result<VersionIndex> ReadVersionIndex(FileSystem& files, const std::string& version_folder);

// Lifecycle: open until destroyed; spans end with it and survive a move. Threads: safe from any.
class VersionFolder {
 public:
  // UNAVAILABLE: not published yet, or a shard is missing (the message names it). DATA_LOSS: an
  // index that is not exact, a tensor in two shards, a shard that the index does not know, a
  // missing or malformed digest, an entry that is no U8 list. Others: as ReadVersionIndex and
  // Checkpoint::Open. Copies by default: the writer may remove the folder at any time.
  static Result<VersionFolder> Open(FileSystem& files, const std::string& version_folder,
                                    FileAccess access = FileAccess::kCopied);

  const VersionIndex& index() const { return index_; }
  // Of a delta, by name; empty for a full checkpoint.
  const std::vector<VersionEntry>& entries() const { return entries_; }
  // The files; of a full checkpoint, the weights.
  const safetensors::Checkpoint* checkpoint() const {
    return checkpoint_ ? &*checkpoint_ : nullptr;
  }
  // What tells this version from one of the same number that another run of the trainer wrote.
  const std::string& identity() const { return identity_; }

 private:
  VersionFolder() = default;
  Status ReadEntries(const std::string& folder);

  VersionIndex index_;
  std::optional<safetensors::Checkpoint> checkpoint_;  // nullopt: a delta without changes
  std::vector<VersionEntry> entries_;
  std::string identity_;
};

}  // namespace dws::slime
