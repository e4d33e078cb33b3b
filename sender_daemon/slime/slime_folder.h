// The folder to which a sender publishes slime's versions, and its owner. Readers identify versions
// by number only, so a folder may hold versions of one run of one trainer only:
//
//   1. .dws_publisher names the owner: "STREAM EPOCH\n". Written before the first version.
//   2. Every index that we write names it too, as dws_stream in its metadata.
//   3. A folder with versions of another owner, or without a named owner, is refused. It is never
//      changed: another trainer may write there, or readers may still need its versions.
//   4. Readers treat a version without an index as a full checkpoint. So a version that is not
//      complete, or is being removed, has another name (.weight_vNNNNNN.WRITER.new, ....gone). In
//      our own folder such a version was left by a writer, or belongs to a writer that does not
//      know yet that the folder is ours. It is renamed before it is removed, so that nobody can
//      publish half of it.
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

// What the folder and its versions name as their stream: the stream of a rank state, and its view
// if it is one. Versions of two views of one stream are of two runs to readers. Has no blanks.
std::string SlimeStreamName(const RankState& state);

// VersionWriteOptions::writer for a rank state.
std::string SlimeWriterName(const RankState& state);

// Lifecycle: for one rank state. Take first, then the others. Threads: one at a time.
class SlimeFolder {
 public:
  // `files` must outlive it.
  SlimeFolder(FileSystem& files, std::string root, const RankState& state);

  // Makes the folder ours, and removes unfinished versions. FAILED_PRECONDITION: it belongs to
  // another stream; the message says to which, and what to do. Other errors come from the file
  // system, and from indices that cannot be read.
  //
  // `lost_to`: the stream that has taken the folder from this one, if any. Then this sender does
  // not take back a folder without versions: otherwise the two would undo each other's work for
  // ever.
  Status Take(const std::string& lost_to = {});
  // Returns the stream that owns the folder now; empty: none, or this one.
  Result<std::string> OtherStream() const;
  // Call it before a version is written. It removes unfinished versions. Returns false if the
  // version need not be written, because a failed attempt had published it. FAILED_PRECONDITION:
  // the folder has changed since this sender left it, belongs to another stream now, or has that
  // version; call Take to find out.
  Result<bool> Begin(uint64_t version);
  // Call again before readers see the version. FAILED_PRECONDITION: another sender has taken the
  // folder.
  Status CheckOwned() const;
  // Removes what has been written of a version since Begin.
  Status Abandon(uint64_t version);
  // Removes all that has a name unknown to readers, also parts (part_request.h). Failures are
  // logged.
  void RemoveUnfinished();

  const std::string& root() const { return root_; }
  // The newest published version; 0: none.
  uint64_t newest() const { return published_.empty() ? 0 : published_.rbegin()->first; }
  // Returns whether a published version is a full checkpoint.
  bool IsFull(uint64_t version) const { return published_.at(version); }
  // Records a published version.
  void Add(uint64_t version, bool full) {
    published_[version] = full;
    begun_.reset();
  }

  // How many deltas have been published since the newest full checkpoint.
  size_t DeltasSinceFull() const;
  // Removes, oldest first, the versions that none of the newest `keep` versions needs: those before
  // the full checkpoint on which the oldest of them builds. 0: removes nothing.
  Status Retire(size_t keep);

 private:
  struct Owner {
    std::string stream;
    uint64_t epoch = 0;
  };
  // Returns an empty stream if nobody owns the folder yet.
  Result<Owner> ReadOwner() const;
  Status CheckOwner(const Owner& owner) const;
  Status WriteOwner();
  Status Refuse(const std::string& whose) const;
  // What a message calls another stream than this.
  std::string Named(const std::string& other) const;
  std::string PathOf(uint64_t version) const;
  // FAILED_PRECONDITION: the version is not of this stream.
  Result<slime::VersionIndex> ReadOwnIndex(uint64_t version) const;
  // Removes one of our versions. Renames it first, so that readers see no version rather than half
  // a version.
  Status Discard(uint64_t version);
  Status RemoveHidden(std::string name);

  FileSystem& files_;
  const std::string root_;
  const Owner self_;
  const std::string writer_;
  std::map<uint64_t, bool> published_;  // by version: whether it is a full checkpoint
  std::optional<uint64_t> begun_;       // begun, not known to be published
};

}  // namespace dws
