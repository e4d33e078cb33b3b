// The folder that a sender publishes slime's versions to, and whose it is. Readers take versions by
// their numbers alone, so a folder has those of one run of one trainer, and nobody else's:
//
//   1. .dws_publisher says whose it is: "STREAM EPOCH\n". Written before the first version.
//   2. Every index of ours says it too, as dws_stream in its metadata.
//   3. A folder with versions of others is refused, also with ones that say nothing. It is never
//      changed: another trainer may write there, or readers may still need what lies there.
//   4. Readers take a version without an index for a full checkpoint: one that is not whole yet, or
//      is being removed, has another name (.weight_vNNNNNN.WRITER.new, ....gone). In a folder that
//      is ours such a one is what a writer has left, or one that does not know yet that it is ours:
//      it loses that name before it is removed, so nobody can make a version of half of it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/version_index.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// VersionWriteOptions::writer of a rank state.
std::string SlimeWriterName(const RankState& state);

// Lifecycle: of one rank state. Take, then the others. Threads: one at a time.
class SlimeFolder {
 public:
  // `files` outlives it.
  SlimeFolder(FileSystem& files, std::string root, const RankState& state);

  // Makes it ours, and removes what is unfinished. FAILED_PRECONDITION: it is another's; the
  // message says whose, and what to do. Others: of the file system, and of indices that cannot be
  // read.
  //
  // `lost_to`: the stream that has taken it from this one, if any: who was there first does not
  // take back a folder that has no versions yet, or the two would undo each other's for ever.
  Status Take(const std::string& lost_to = {});
  // Of the folder now; empty: none, or this one.
  Result<std::string> OtherStream() const;
  // Before a version is written; removes what is unfinished. False: it need not be written, a try
  // that failed had published it. FAILED_PRECONDITION: the folder is not as this sender left it, is
  // another's by now, or has that version: what Take says counts.
  Result<bool> Begin(uint64_t version);
  // Again before readers see it: FAILED_PRECONDITION, another sender has taken the folder.
  Status CheckOwned() const;
  // What has been written of a version since Begin.
  Status Abandon(uint64_t version);

  const std::string& root() const { return root_; }
  // The newest published version; 0: none.
  uint64_t newest() const { return published_.empty() ? 0 : published_.rbegin()->first; }
  // Of a published one.
  bool IsFull(uint64_t version) const { return published_.at(version); }
  // One more is published.
  void Add(uint64_t version, bool full) {
    published_[version] = full;
    begun_.reset();
  }

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
  Status WriteOwner();
  Status Refuse(const std::string& whose) const;
  std::string PathOf(uint64_t version) const;
  // FAILED_PRECONDITION: it is not of this stream.
  Result<slime::VersionIndex> ReadOwnIndex(uint64_t version) const;
  // Removes a version of ours. It loses its name first: who looks meanwhile sees no version, and
  // never half of one.
  Status Discard(uint64_t version);
  // What has a name that readers do not know. What cannot be removed is logged.
  void RemoveUnfinished();
  Status RemoveHidden(std::string name);

  FileSystem& files_;
  const std::string root_;
  const Owner self_;
  const std::string writer_;
  std::map<uint64_t, bool> published_;  // whether it is a full checkpoint
  std::optional<uint64_t> begun_;       // not known to be published
};

}  // namespace dws
