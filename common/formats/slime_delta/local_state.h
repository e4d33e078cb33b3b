// What stands in CHECKPOINT/.weight_sync: the lock and the state that every reader of the format
// keeps there, and the digests that only ours keeps.
//
//   lock           flock(2), held by whoever changes the checkpoint
//   state.json     {"version": "000002"}; other keys are others' and stay
//   digests.json   ours, see below
//   redo/          ours (redo.h)
//
// digests.json:
//   {"version": "000002", "checksum_format": "xxh3-128",
//    "tensors": {name: digest of all its bytes as of the version},
//    "identity": of that version alone; empty: not known,
//    "stream", "chain", "since", "refused", "doubted", "other_ns": of Lineage, the last four where
//    there is one,
//    "applied": {"000001": AppliedText, ...}}
// A file without "chain" is of a release before chains. It is read as a lineage whose beginning is
// not known, with the identity as its chain and its only applied version; the next look at the
// folder adopts what is there, if it states the digests that the tensors have (run_check.h). That
// release reads ours: it looks at version, identity, stream, checksum_format and tensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/lineage.h"

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

// Of every tensor of the checkpoint as of `version`.
struct LocalDigests {
  uint64_t version = 0;
  Lineage lineage;
  std::map<std::string, std::string> tensors;

  friend bool operator==(const LocalDigests&, const LocalDigests&) = default;
};
// nullopt: there are none. DATA_LOSS: damaged.
Result<std::optional<LocalDigests>> ReadDigests(FileSystem& files,
                                                const std::string& checkpoint_folder);
Status WriteDigests(FileSystem& files, const std::string& checkpoint_folder,
                    const LocalDigests& digests);

}  // namespace dws::slime
