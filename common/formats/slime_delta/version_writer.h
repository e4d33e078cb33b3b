// Writes a version folder that unmodified readers of the format apply.
//
// 1. Tensors are compared, coded and compressed by whoever adds them, on any number of threads.
// 2. When the entries that wait for a file reach the size of a shard, whoever filled it writes it
//    to model-NNNNN.tmp and syncs it.
// 3. Finish writes the last shard, renames all to model-NNNNN-of-TOTAL.safetensors, and writes the
//    index. Until here the folder has a name that readers do not look for; it gets its own, which
//    is the publication.
//
// What a writer that dies or is dropped before that leaves under the other name, the next writer
// of that version clears.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/version_index.h"
#include "common/model/limits.h"

namespace dws::slime {

struct VersionWriteOptions {
  uint64_t version = 0;  // at least 1; its base is the version before
  // Names whoever may write to the folder at the same time as others: the folder of a version that
  // is not whole has it in its name. Of a file name's characters.
  std::string writer = {};
  Encoding encoding = Encoding::kXor;
  ChecksumFormat checksum = ChecksumFormat::kXxh3;
  uint64_t shard_bytes_max = limits::kSlimeShardBytesDefault;
  std::map<std::string, std::string> extra;  // more metadata of the index
  // Asked last, before readers see anything; its error ends the writing. None: nobody is.
  std::function<Status()> may_publish = nullptr;
  // Written where it will be, for a folder without readers: the index alone says that it is whole.
  bool in_place = false;
};

struct VersionSummary {
  size_t tensor_count = 0;  // changed ones
  size_t shard_count = 0;
  uint64_t entry_bytes = 0;  // compressed payloads of all
};

// The name that a version has in its folder until it is whole. Readers look for no such name; they
// take a version without an index for a full checkpoint.
std::string UnfinishedFolderName(uint64_t version, const std::string& writer);

// A folder of that name in `folder`, made, and cleared of what a writer of that name has left.
// ALREADY_EXISTS: that version is there, whole or not. INVALID_ARGUMENT: one that cannot be.
Result<std::string> BeginVersionFolder(FileSystem& files, const std::string& folder,
                                       uint64_t version, const std::string& writer);
// Gives what BeginVersionFolder began, and is whole and durable now, its name. ALREADY_EXISTS:
// somebody else was quicker. After another error it may have its name all the same.
Status PublishVersionFolder(FileSystem& files, const std::string& folder, uint64_t version,
                            const std::string& writer);

// Lifecycle: Create, Add..., Finish once. Threads: Add from several at a time; Finish when all have
// returned. After an error of Add, Finish gives the same error and publishes nothing.
class VersionWriter {
 public:
  // In `folder`/weight_vNNNNNN. Errors as BeginVersionFolder. `files` must outlive it.
  static Result<std::unique_ptr<VersionWriter>> Create(FileSystem& files, const std::string& folder,
                                                       const VersionWriteOptions& options);

  // A tensor, which is left out when nothing of it has changed. INVALID_ARGUMENT: as EncodePayload,
  // and a name that was added before.
  Status Add(const std::string& name, ByteSpan before, ByteSpan after);
  // The same from the new bytes and the runs that hold all changes (EncodeChanged).
  Status AddChanged(const std::string& name, ByteSpan after, std::span<const ByteRun> changed);

  // Publishes.
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

  Status AddEntry(const std::string& name, ByteSpan after, Result<std::vector<std::byte>> payload);
  Status WriteShard(size_t number, const std::vector<Entry>& entries);
  Status Keep(Status status);
  std::string TemporaryPath(size_t number) const;

  FileSystem& files_;
  const std::string parent_;
  const std::string folder_;  // where it is written
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
