// Objects of an S3-compatible store as files, for what a shared directory needs of them
// (common/transport/shared_fs/LAYOUT.md): "s3://BUCKET/PREFIX/a/b" is the object PREFIX/a/b.
// Folders are not objects: there is nothing to make or to remove. A file that is written under a
// temporary name and renamed is one upload, which ends with the renaming: until then nobody sees
// anything, under either name.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/transport/s3/client.h"

namespace dws::s3 {

// Errors are those of Client. Removing what is not there is OK. Threads: safe from any.
class S3FileSystem final : public FileSystem {
 public:
  // `bucket`: of the client. `part_bytes`: of an upload, which doubles every 1,000 parts; at least
  // 5 MiB, as stores demand.
  S3FileSystem(std::unique_ptr<Client> client, std::string bucket,
               size_t part_bytes = size_t{16} << 20);
  ~S3FileSystem() override;

  // Gives up the uploads below `folder` that were begun by a process that has ended.
  Status AbortUploads(const std::string& folder);

  Traffic traffic() const { return client_->traffic(); }

  Result<std::vector<std::byte>> ReadFile(const std::string& path,
                                          uint64_t size_bytes_max) override;
  // Reads of an object that another one has replaced are DATA_LOSS.
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override;
  // UNIMPLEMENTED: an object is not appended to.
  Result<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override;
  // INVALID_ARGUMENT: the name does not end with shared::kTemporaryEnding.
  Result<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  Status ReplaceFile(const std::string& path, ByteSpan bytes) override;
  // FAILED_PRECONDITION: `from` was not made by Create, or `to` is not its name without the ending.
  Status Rename(const std::string& from, const std::string& to) override;
  Result<std::vector<std::string>> List(const std::string& folder) override;
  Status MakeFolders(const std::string& folder) override;
  Status Remove(const std::string& path) override;
  Status RemoveFolder(const std::string& folder) override;
  // UNIMPLEMENTED: there are no locks.
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override;

 private:
  class Upload;
  class Part;

  // INVALID_ARGUMENT: it is in another bucket.
  Result<std::string> KeyOf(const std::string& path) const;

  const std::unique_ptr<Client> client_;
  const std::string root_;  // "s3://BUCKET/"
  const size_t part_bytes_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Upload>> uploads_ GUARDED_BY(mutex_);  // by path
  Executor ahead_;  // reads ranges of files; ends before what it uses
};

}  // namespace dws::s3
