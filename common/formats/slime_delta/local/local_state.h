// The contents of CHECKPOINT/.weight_sync: the lock and the state that every reader of the format
// keeps there, and the digests that only DWS keeps.
//
//   lock           flock(2), held by a process while it reads or changes the checkpoint
//   dws_lock       only DWS's: flock(2), held by the receiver that keeps the checkpoint
//   state.json     {"version": "000002"}; keys of other programs are kept. "valid": false: another
//                  program is, or was, in the middle of a change
//   digests.json   only DWS's, see below
//   redo/          only DWS's (redo.h)
//   dws_engine     only DWS's: what an engine has loaded (loaded_record.h)
//
// digests.json:
//   {"version": "000002", "checksum_format": "xxh3-128",
//    "tensors": {name: digest of all its bytes as of the version},
//    "stream", "chain", "name", "since", "refused", "doubted", "other_ns": fields of Lineage, the
//                last five only if they have a value,
//    "applied": {"000001": AppliedText, ...}}
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/local/lineage.h"

namespace dws::slime {

std::string StatePath(const std::string& checkpoint_folder);
std::string DigestsPath(const std::string& checkpoint_folder);

// The version of the local checkpoint; 0, the base, when there is no state. DATA_LOSS: the file is
// not the JSON described above, or its "valid" is false.
Result<uint64_t> ReadState(FileSystem& files, const std::string& checkpoint_folder);
Status WriteState(FileSystem& files, const std::string& checkpoint_folder, uint64_t version);

// The digests of every tensor of the checkpoint as of `version`.
struct LocalDigests {
  uint64_t version = 0;
  Lineage lineage;
  std::map<std::string, std::string> tensors;

  friend bool operator==(const LocalDigests&, const LocalDigests&) = default;
};
// nullopt: there is no such file. DATA_LOSS: damaged.
Result<std::optional<LocalDigests>> ReadDigests(FileSystem& files,
                                                const std::string& checkpoint_folder);
Status WriteDigests(FileSystem& files, const std::string& checkpoint_folder,
                    const LocalDigests& digests);
// Like ReadDigests, for a file at any path.
Result<std::optional<LocalDigests>> ReadDigestsFrom(FileSystem& files, const std::string& path);
Status WriteDigestsTo(FileSystem& files, const std::string& path, const LocalDigests& digests);

}  // namespace dws::slime
