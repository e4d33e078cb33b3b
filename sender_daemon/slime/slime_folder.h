// The folder that a sender publishes slime's versions to, and whose it is. Readers take versions by
// their numbers alone, so a folder has those of one run of one trainer, and nobody else's:
//
//   1. .dws_publisher says whose it is: "STREAM EPOCH\n". Written before the first version.
//   2. Every index of ours says it too, as dws_stream in its metadata.
//   3. A folder with versions of others is refused, also with ones that say nothing. It is never
//      changed: another trainer may write there, or readers may still need what lies there.
//   4. Readers take a version without an index for a full checkpoint: one that is not whole yet, or
//      is being removed, has another name (.weight_vNNNNNN.new, .gone). In a folder that is ours
//      such a one is what a writer of ours has left.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "sender_daemon/rank_state.h"

namespace dws {

// In the metadata of an index.
inline constexpr const char* kSlimeStreamKey = "dws_stream";

// Lifecycle: of one rank state. Take, then the others. Threads: one at a time.
class SlimeFolder {
 public:
  // `files` outlives it.
  SlimeFolder(FileSystem& files, std::string root, const RankState& state);

  // Makes it ours, and removes what writers of ours have left unfinished. FAILED_PRECONDITION: it
  // is another's; the message says whose, and what to do. Others: of the file system, and of
  // indices that cannot be read.
  Status Take();
  // Before a version is written. FAILED_PRECONDITION: another sender has taken the folder
  // meanwhile, or has begun that version.
  Status Begin(uint64_t version);
  // Again before readers see it: FAILED_PRECONDITION, another sender has taken the folder.
  Status CheckOwned() const;
  // What was begun turned out to be another's.
  void Leave(uint64_t version) { begun_.erase(version); }

  const std::string& root() const { return root_; }
  // The newest published version; 0: none.
  uint64_t newest() const { return published_.empty() ? 0 : published_.rbegin()->first; }
  // One more is published.
  void Add(uint64_t version, bool full) {
    published_[version] = full;
    begun_.erase(version);
  }

  // Removes a version of ours, whatever there is of it. It loses its name first: who looks
  // meanwhile sees no version, and never half of one.
  Status Discard(uint64_t version);
  // Removes what comes before the newest `keep` deltas, but for the newest full checkpoint there.
  // 0: nothing.
  Status Retire(size_t keep);

 private:
  struct Owner {
    std::string stream;
    uint64_t epoch = 0;
  };
  // An empty stream: nobody's yet.
  Result<Owner> ReadOwner() const;
  Status CheckOwner(const Owner& owner) const;
  Status Refuse(const std::string& whose) const;
  std::string PathOf(uint64_t version) const;
  // What is left of versions under other names.
  Status RemoveLeftovers();
  Status RemoveHidden(const std::string& name);

  FileSystem& files_;
  const std::string root_;
  const Owner self_;
  std::map<uint64_t, bool> published_;  // whether it is a full checkpoint
  std::set<uint64_t> begun_;            // not published, ours
};

}  // namespace dws
