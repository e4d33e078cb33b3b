// One trainer rank's folder in a shared directory, as a receiver reads it (common/transport/
// shared_fs/LAYOUT.md): what is offered there, and the three things a receiver asks a sender for,
// made from the files. Everything from here was checked with a manifest's SHA-256.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/mutex.h"
#include "common/base/wall_clock.h"
#include "common/model/limits.h"
#include "common/sources/source.h"
#include "common/sync_state/subscription_state.h"
#include "common/transport/shared_fs/version_catalog.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/transfer/shared/shared_files.h"

namespace dws {

// Its name as a source of the chain.
inline constexpr std::string_view kSharedDirName = "shared-dir";

// Threads: safe from any; Look by one at a time.
class SharedSource {
 public:
  struct Options {
    std::string root;
    std::string job_id;
    std::string view = {};  // empty: the trainer's own tensors
    TrainerRank rank;
    shared::Key key;
    ThreadPool* pool = nullptr;                           // not owned; never null
    Duration retry_delay = limits::kSharedRetryDelayMin;  // doubles
    uint64_t ahead_bytes_max = 0;                         // see SharedPlace
    bool is_remote = false;  // `files` repeat requests themselves: UNAVAILABLE is not tried again
    std::function<void()> on_progress = [] {};  // called by Look after each manifest
    const WallClock* wall_clock = &kSystemWallClock;
  };
  struct Offer {
    SenderWelcome welcome;
    std::vector<WeightVersion> versions;  // ascending, not empty
    std::optional<Digest> newest_token;   // state token of the last
    Status trouble;                       // a version that is there and cannot be used
  };

  // `cancellation` ends calls, present and future, with CANCELLED. It and `files` outlive it.
  SharedSource(FileSystem& files, Options options, Cancellation& cancellation)
      : files_(files), options_(std::move(options)), cancellation_(cancellation) {
    DWS_CHECK(options_.pool != nullptr);
  }

  // Looks at the folder and takes the stream of the highest incarnation that has a version. If two
  // streams have the same incarnation, it takes `followed`. It ignores other streams than
  // `followed` that are ahead of the clock (clock_bound.h), and names them as trouble. UNAVAILABLE:
  // there is no version (yet), or the folder cannot be read. DEADLINE_EXCEEDED: it does not answer
  // in time. FAILED_PRECONDITION: two streams claim one incarnation. DATA_LOSS and what
  // ParseWelcome returns: the files there cannot be used.
  Result<Offer> Look(const std::optional<StreamId>& followed);
  // Returns whether `version` was in the directory when it was last read.
  bool Has(const StreamId& stream, WeightVersion version) const;

  // Errors as Source's; Full also FAILED_PRECONDITION: only digests lead to the version
  // (VersionSet). They try again for a few seconds while a file is missing or not whole. After that
  // a file that a manifest names is DATA_LOSS. For versions before the newest full tensors they
  // return ABORTED at once: those versions are retired.

  // If several deltas lead to the version, composes them, over `want.old` if they have class-split
  // blocks. ABORTED: a third of the spool's memory does not hold them and what they compose.
  Result<Spool> Object(const StreamId& stream, WeightVersion version, const RankLayout& layout,
                       const DeltaWant& want, const Spool::Options& spool);
  Result<Description> Describe(const StreamId& stream, WeightVersion version);
  // Reads the slices that are incomplete in `assembly`.
  Status Full(const StreamId& stream, WeightVersion version, FullAssembly& assembly);

  Result<std::string> Folder() const;  // of the rank

 private:
  // Looks at one stream; nullopt: it has no version (yet).
  Result<std::optional<Offer>> LookAt(const std::string& rank_folder, const StreamId& stream);
  Result<SenderWelcome> ReadWelcome(const shared::Manifest& manifest, const std::string& folder);
  // Removes the streams that are ahead of the clock. Returns OK, or what is wrong with the first of
  // them.
  Status TakeOutAhead(std::vector<StreamId>& streams, const std::optional<StreamId>& followed,
                      const std::string& folder) const;
  // FAILED_PRECONDITION: two streams claim one incarnation, `followed` is neither of them, and its
  // incarnation is not higher.
  Status CheckClaims(const std::vector<StreamId>& streams, const std::optional<StreamId>& followed,
                     const std::string& folder) const;

  // What the directory has of `stream` now. ABORTED: the directory is another stream's by now.
  struct Known {
    shared::VersionSet versions;
    std::string folder;
  };
  Result<Known> Versions(const StreamId& stream);
  SharedPlace PlaceOf(const Known& known);
  void Forget(const StreamId& stream, WeightVersion from, WeightVersion to);
  // Runs `attempt` until it succeeds or another attempt is useless; the files of versions `from` to
  // `to` are read again after each failure.
  template <typename T, typename Attempt>
  Result<T> Retry(const StreamId& stream, WeightVersion from, WeightVersion to,
                  const Attempt& attempt);
  FileSystem& files_;
  const Options options_;
  Cancellation& cancellation_;
  // The last welcome that was read, with its file.
  std::optional<std::pair<shared::FileEntry, SenderWelcome>> welcome_;  // of Look's thread

  // Held while the folder is looked at.
  mutable Mutex mutex_;
  std::optional<shared::VersionCatalog> catalog_ GUARDED_BY(mutex_);  // of the stream offered last
};

}  // namespace dws
