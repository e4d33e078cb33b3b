// What stands in CHECKPOINT/.weight_sync: the lock and the state that every reader of the format
// keeps there, and the digests that only ours keeps.
//
//   lock           flock(2), held by whoever changes the checkpoint
//   state.json     {"version": "000002"}; other keys are others' and stay
//   digests.json   {"version": "000002", "identity": ..., "stream": ...,
//                   "checksum_format": "xxh3-128", "tensors": {name: digest of all its bytes}}:
//                   ours
//   redo/          ours (redo.h)
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"

namespace dws::slime {

// CHECKPOINT/.weight_sync
std::string SyncFolder(const std::string& checkpoint_folder);

// Makes the folder. UNAVAILABLE: another process holds the lock.
Result<std::unique_ptr<FileLock>> LockLocal(FileSystem& files,
                                            const std::string& checkpoint_folder);

// FAILED_PRECONDITION: what `dwsctl apply --in-place` has begun here has not ended: it is no
// version at all (in_place_redo.h).
Status CheckNoInPlaceRedo(FileSystem& files, const std::string& checkpoint_folder);

// The version of the local checkpoint; 0, the base, where there is no state. DATA_LOSS: no such
// JSON.
Result<uint64_t> ReadState(FileSystem& files, const std::string& checkpoint_folder);
Status WriteState(FileSystem& files, const std::string& checkpoint_folder, uint64_t version);

// Which run's version it is: numbers begin anew with each.
struct VersionOrigin {
  std::string identity;  // VersionFolder::identity(); empty: not known
  std::string stream;    // where its writer is a dws-sender; empty: another, or not known

  friend bool operator==(const VersionOrigin&, const VersionOrigin&) = default;
};

// Of every tensor of the checkpoint as of `version`.
struct LocalDigests {
  uint64_t version = 0;
  VersionOrigin origin;
  std::map<std::string, std::string> tensors;

  friend bool operator==(const LocalDigests&, const LocalDigests&) = default;
};
// nullopt: there are none. DATA_LOSS: damaged.
Result<std::optional<LocalDigests>> ReadDigests(FileSystem& files,
                                                const std::string& checkpoint_folder);
Status WriteDigests(FileSystem& files, const std::string& checkpoint_folder,
                    const LocalDigests& digests);

}  // namespace dws::slime
