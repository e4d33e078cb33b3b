// Publishes versions as slime's folders weight_vNNNNNN, which readers of that format apply
// unmodified, beside announcing them: on a thread of its own, from what the log retains. It holds
// up nobody, and what it cannot do now it tries again.
//
//   1. a version that was published right after the one before it, with the next number, is a delta
//   2. the first version is a full checkpoint; so is the newest one when the chain cannot be
//      continued: a number was left out, the log no longer leads on, or what it leads to cannot be
//      read any more, or is damaged in our memory
//   3. what a failed try has written is removed; what comes before the newest `keep` deltas, too,
//      but for the newest full checkpoint there
//   4. versions in the folder of an earlier process with this stream stay, and the chain begins
//      anew after them; those of others are refused (slime_folder.h)
//   5. where the folder is not any more as it was left, it is taken anew, by the same rules
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "sender_daemon/publish/offer_loop.h"
#include "sender_daemon/slime/base_checkpoint.h"
#include "sender_daemon/slime/slime_folder.h"
#include "sender_daemon/slime/slime_view.h"
#include "sender_daemon/slime/slime_writer.h"

namespace dws {

// What --slime-dir and its companions say.
struct SlimeDirOptions {
  std::string root;  // empty: none
  slime::Encoding encoding = slime::Encoding::kXor;
  slime::ChecksumFormat checksum = slime::ChecksumFormat::kXxh3;
  size_t keep = 0;         // deltas; 0: all
  std::string checkpoint;  // that readers start from
};

// Lifecycle: Start, then Stop or the destructor. Threads: safe from any.
class SlimePublisher {
 public:
  struct Options {
    SlimeDirOptions dir;
    BaseCheckpoint base = {};
    // Told once of each version that our own memory turned out to be damaged for.
    std::function<void(const RankStatePtr&)> on_damage = nullptr;
    std::chrono::milliseconds retry_delay = limits::kOfferRetryDelayMin;  // doubles
  };

  // `files` outlives it.
  SlimePublisher(Options options, FileSystem& files);

  void Start() { loop_.Start(); }
  // A trainer has registered, or there may be a new version in that state. Never blocks.
  void Offer(RankStatePtr state) { loop_.Offer(std::move(state)); }
  // Everything offered is in the folder, or there is trouble.
  bool settled() const { return loop_.settled(); }
  void Stop() { loop_.Stop(); }

  SlimeView view() const;

  // One round of its work, for tests that have no thread: true when there is more to do.
  Result<bool> Step() { return loop_.StepOnce(); }

 private:
  // Where the state that is published now stands.
  struct Progress {
    Progress(SlimeWriter made, SlimeFolder taken)
        : writer(std::move(made)), folder(std::move(taken)) {}
    SlimeWriter writer;
    SlimeFolder folder;
    std::optional<WeightVersion> last;     // written, and may be followed by a delta
    std::optional<WeightVersion> damaged;  // a full checkpoint of it cannot be made
  };
  struct Next {
    RetainedVersionPtr version;  // null: none
    bool full = false;
  };

  Result<bool> Work(const RankStatePtr& offered);
  void LetGo();
  Status Adopt(const RankStatePtr& state);
  // FAILED_PRECONDITION: the base checkpoint has a tensor that is not published.
  Status CheckTensors(const RankLayout& layout) const;
  Result<Next> ChooseNext() const;  // 1 and 2
  Status WriteVersion(const Next& next);
  void NotePublished(WeightVersion version, bool full, uint64_t bytes);

  const Options options_;
  FileSystem& files_;
  // Of the thread.
  std::unique_ptr<Progress> progress_;
  struct Lost {
    RankStatePtr state;
    std::string to;  // SlimeFolder::Take
  };
  Lost lost_;

  mutable Mutex mutex_;
  SlimeView view_ GUARDED_BY(mutex_);  // without failures and trouble
  OfferLoop loop_;                     // last: its thread uses all the rest
};

}  // namespace dws
