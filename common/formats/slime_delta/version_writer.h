// Writes a version folder that unmodified readers of the format apply.
//
// 1. Add compares, encodes and compresses a tensor on the calling thread; several threads may add.
// 2. When the waiting entries reach the size of a shard, the thread that added the last one writes
//    the shard to model-NNNNN.tmp and syncs it.
// 3. Finish writes the last shard, renames all to model-NNNNN-of-TOTAL.safetensors, and writes the
//    index. Until here the folder has a temporary name that readers ignore. The rename to its final
//    name publishes it.
//
// If a writer dies or is destroyed before that, the next writer of that version clears the folder
// with the temporary name.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/formats/slime_delta/entry_builder.h"
#include "common/formats/slime_delta/version_index.h"
#include "common/model/limits.h"

namespace dws::slime {

struct VersionWriteOptions {
  uint64_t version = 0;  // at least 1; its base is the version before
  // Identifies the writer if several may write to the folder at the same time: the temporary name
  // of a version's folder contains it. Only characters allowed in a file name.
  std::string writer = {};
  Encoding encoding = Encoding::kXor;
  ChecksumFormat checksum = ChecksumFormat::kXxh3;
  uint64_t shard_bytes_max = limits::kSlimeShardBytesDefault;
  // Unchanged tensors get entries, too: their digests prove what readers apply the version to.
  bool unchanged_too = false;
  std::map<std::string, std::string> extra;  // more metadata of the index
  // Called last, just before the version is published. If it returns an error, the version is not
  // published. May be empty.
  std::function<Status()> may_publish = nullptr;
  // Write under the final name from the start, for a folder without readers: only the index shows
  // that the version is complete.
  bool in_place = false;
  // Keep the temporary name, also when all is written: JoinParts (version_parts.h) publishes it
  // together with the parts of other writers. `may_publish` is called before the index is written,
  // which makes the part complete.
  bool part = false;
};

// What a version that was written consists of.
struct VersionSummary {
  size_t tensor_count = 0;  // changed tensors
  size_t shard_count = 0;
  uint64_t entry_bytes = 0;  // all compressed payloads together
};

// The temporary name of a version's folder. Readers ignore such names. They need it because some
// readers treat a version folder without an index as a full checkpoint.
std::string UnfinishedFolderName(uint64_t version, const std::string& writer);

// Makes a folder of that name in `folder`, or clears what an earlier writer of that name has left.
// ALREADY_EXISTS: the version's folder has files, complete or not. INVALID_ARGUMENT: an impossible
// version number.
Result<std::string> BeginVersionFolder(FileSystem& files, const std::string& folder,
                                       uint64_t version, const std::string& writer);
// Renames a folder of BeginVersionFolder, which is complete and durable now, to its final name.
// ALREADY_EXISTS: another writer was faster. After another error the rename may still have
// happened.
Status PublishVersionFolder(FileSystem& files, const std::string& folder, uint64_t version,
                            const std::string& writer);

// Writes one delta version. Lifecycle: Create, Add..., Finish once. Threads: Add from several at a
// time; Finish when all have returned. After an error of Add, Finish returns the same error and
// publishes nothing.
class VersionWriter {
 public:
  // For `folder`/weight_vNNNNNN. Errors as BeginVersionFolder. `files` must outlive the writer.
  static Result<std::unique_ptr<VersionWriter>> Create(FileSystem& files, const std::string& folder,
                                                       const VersionWriteOptions& options);

  // For the entry of a tensor; then Add. INVALID_ARGUMENT: as EntryBuilder::Create.
  Result<EntryBuilder> NewEntry(const std::string& name, uint64_t tensor_bytes);
  // Adds a tensor; an unchanged one is left out, unless `unchanged_too`. INVALID_ARGUMENT: as
  // EntryBuilder::Finish, and a name that was added before.
  Status Add(const std::string& name, EntryBuilder builder);
  // Like the other Add, for a tensor that is in memory. INVALID_ARGUMENT also if the sizes differ.
  Status Add(const std::string& name, ByteSpan before, ByteSpan after);

  // For a version of encoding dws_runs: adds a tensor by the payload of its runs, and the digest of
  // its new bytes. A payload without runs is left out.
  Status AddRuns(const std::string& name, std::string digest, std::vector<std::byte> payload);

  // Adds a tensor by its entry, compressed as it will be in the shard, and the digest of its new
  // bytes.
  Status AddCompressed(const std::string& name, std::string digest, std::vector<std::byte> entry);

  // Completes and publishes the version.
  Result<VersionSummary> Finish();

 private:
  struct Entry {
    std::string name;
    std::string digest;
    std::vector<std::byte> bytes;
  };
  VersionWriter(FileSystem& files, std::string parent, std::string folder,
                VersionWriteOptions options)
      : files_(files),
        parent_(std::move(parent)),
        folder_(std::move(folder)),
        options_(std::move(options)) {}

  Status AddEntry(Entry entry);
  Status WriteShard(size_t number, const std::vector<Entry>& entries);
  Status Keep(Status status);
  std::string TemporaryPath(size_t number) const;

  FileSystem& files_;
  const std::string parent_;
  const std::string folder_;  // the folder that is written
  const VersionWriteOptions options_;

  Mutex mutex_;
  Status error_ GUARDED_BY(mutex_);
  std::vector<Entry> waiting_ GUARDED_BY(mutex_);
  uint64_t waiting_bytes_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, size_t> shard_of_ GUARDED_BY(mutex_);  // tensor to shard
  size_t shard_count_ GUARDED_BY(mutex_) = 0;
  uint64_t entry_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace dws::slime
