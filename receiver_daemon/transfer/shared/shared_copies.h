// One trainer rank's folder in the copies of a shared directory, for a receiver that knows its
// senders through it alone. The first copy that can be read, and does not lag behind what was seen,
// says what there is; while it shows nothing new, the others are looked at now and then, because it
// may be frozen. The last is where the sender or its store is: its word is taken as it is.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/threads/mutex.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/transfer/shared/failure_pause.h"
#include "receiver_daemon/transfer/shared/shared_source.h"

namespace dws {

// Threads: safe from any; Look and AskAll by one at a time. A look at one copy delays nothing that
// another one has.
class SharedCopies {
 public:
  using Offer = SharedSource::Offer;
  // How far a rank's versions go.
  struct Reach {
    StreamId stream;
    RankEpoch epoch;
    WeightVersion version;

    friend bool operator==(const Reach&, const Reach&) = default;
  };
  // What is known of the rank.
  struct Seen {
    std::optional<StreamId> followed;
    std::optional<Reach> accepted;  // the newest offer that was
    std::optional<VersionAt> live;  // what the engine has
  };
  struct Copy {
    std::string root;
    std::unique_ptr<SharedSource> source;
    std::shared_ptr<FailurePause> pause;  // one for all ranks of the root; never null
    bool is_remote = false;               // see SharedSource
  };

  // `copies`: not empty, in the order in which they are asked.
  explicit SharedCopies(std::vector<Copy> copies);

  // Looks at the copies. Trouble of those that were passed over is the offer's, if it has none; a
  // copy that lags is trouble only when it does so for a while. Errors as SharedSource::Look.
  Result<Offer> Look(const Seen& seen);
  // The next look is at all copies, also at those that are left alone because they failed.
  void AskAll();

  // From the first copy that has the version. Errors are those of the last.
  Result<Description> Describe(const SyncTarget& target, TrainerRank rank);
  // The last copy, which was looked at if it did not have the version.
  SharedSource& Last(const SyncTarget& target);
  Result<std::string> LastFolder() const { return places_.back()->copy.source->Folder(); }

 private:
  struct Place {
    explicit Place(Copy of) : copy(std::move(of)) {}
    const Copy copy;
    Mutex look;  // one look at a time
  };

  static Result<Offer> LookAt(Place& place, bool may_pause,
                              const std::optional<StreamId>& followed);
  // UNAVAILABLE: also if it lags, which sets `lags`.
  Result<Offer> LookAtNumber(size_t number, const Seen& seen, bool& lags);
  // Takes the offer of a copy after `number` that is newer than `offer`. A mount may hang for ever,
  // and is not looked at.
  void LookFurther(size_t number, const Seen& seen, Offer& offer);

  std::vector<std::unique_ptr<Place>> places_;
  std::optional<Reach> reach_;  // of the last look's offer
  uint64_t looks_without_news_ = 0;
  uint64_t looks_with_lag_ = 0;
};

}  // namespace dws
