// Objects that a receiver of this host has fetched, as files in a folder that all receivers of one
// user share. A file is the object's bytes, then XXH3-128 of its name and these bytes; an empty
// file says that the object cannot be shared. Names are NAME, NAME.lock and NAME.tmp:
//   1. The receiver that fetches holds the lock, writes NAME.tmp and renames it to NAME. The kernel
//      frees the lock of a process that dies.
//   2. A NAME is complete and is never written again. A process that has it open can read it to its
//      end, even after it was removed.
//   3. Any receiver removes files that are old, that exceed the size limit, or that a dead receiver
//      left.
// Nothing is synced: the folder is meant for a tmpfs, and a damaged file is fetched again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/model/weight_version.h"
#include "common/spool/spool.h"

namespace dws {

// Which object. Both digests are 32 hexadecimal digits.
struct HostKey {
  std::string stream;  // digest of job and stream: their older versions go when a newer one comes
  WeightVersion version;
  std::string object;  // digest of all that tells this object from others

  std::string Name() const;
};

// Lifecycle: of its own. Threads and processes: safe from any.
class HostFolder {
 public:
  // Makes the folder if it is missing, and removes what is not needed. FAILED_PRECONDITION: not a
  // folder, of another user, or writable by others; a link is not followed. `bytes_max`: of all
  // files together.
  static Result<HostFolder> Open(std::string path, uint64_t bytes_max);

  // The lock of the key, held as long as the descriptor is open; not valid: another has it.
  Result<UniqueFd> TryLock(const HostKey& key) const;

  // The file of the key; nullopt: there is none.
  Result<std::optional<UniqueFd>> Find(const HostKey& key) const;
  // The object in that file; nullopt: it cannot be shared. DATA_LOSS: the file is damaged. Others:
  // those of Spool::Append.
  Result<std::optional<Spool>> Read(const UniqueFd& file, const HostKey& key,
                                    Spool::Options options) const;

  // Called by the holder of the lock. After an error the file says that the object cannot be
  // shared, if that could be written. RESOURCE_EXHAUSTED: larger than the folder may be, or the
  // disk is full.
  Status Put(const HostKey& key, const Spool& object) const;
  void Remove(const HostKey& key) const;

 private:
  HostFolder(std::string path, UniqueFd folder, uint64_t bytes_max)
      : path_(std::move(path)), folder_(std::move(folder)), bytes_max_(bytes_max) {}

  struct File {
    HostKey key;
    std::string suffix;
    uint64_t size_bytes = 0;
    int64_t modified_ns = 0;  // since 1970
  };
  // All files with names of this kind, the oldest first.
  Result<std::vector<File>> List() const;
  // Removes files until those that are left have `bytes_max_` together; never `own` (a name).
  Status MakeRoom(const std::string& own) const;
  // Returns whether `file` is temporary and the process that wrote it is gone.
  bool IsLeftover(const File& file) const;

  // A null `object` writes an empty file.
  Status Write(const HostKey& key, const Spool* object) const;
  Status Fill(const UniqueFd& file, const HostKey& key, const Spool& object) const;
  Status Error(int errno_value, const char* what, const std::string& name) const;

  std::string path_;
  UniqueFd folder_;
  uint64_t bytes_max_;
};

}  // namespace dws
