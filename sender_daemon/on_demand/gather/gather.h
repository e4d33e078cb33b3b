// Brings the parameters of a unit at one version from all of their owners into memory of this host:
// each owner's shard by one-sided reads of its snapshot where it can be reached so, and every slice
// proved by its digest.
//
// It waits for each owner by itself: a unit is there when its own owners have published it,
// whatever the others do. What an owner changes while it is read comes from its retained deltas, or
// the gather fails; a mixture of two versions never counts as success.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "sender_daemon/on_demand/gather/host_cache.h"
#include "sender_daemon/on_demand/gather/owner_links.h"
#include "sender_daemon/on_demand/gather/part_reader.h"
#include "sender_daemon/on_demand/gather/unit_at.h"
#include "sender_daemon/on_demand/gather/unit_plan.h"

namespace dws {

// Lifecycle: the destructor calls Stop, and no call may run when it begins. Threads: safe from
// any.
class Gather {
 public:
  struct Options {
    std::vector<UnitSpec> units;
    // The only way that may be used: "same-host", "host-cache", "fabric" or "grpc"; none: the first
    // that works.
    std::optional<std::string> only;
    HostCache* cache = nullptr;  // of this sender, which outlives the gather; null: it has none
    FabricChoice fabric = {};
    std::string spool_folder;  // where deltas go that do not fit memory
  };
  struct Wanted {
    // A call to an owner that hangs may end up to limits::kKeepaliveTimeout later.
    TimePoint deadline;
    // Ends the gather; may be null.
    const Cancellation* cancellation = nullptr;
  };
  // What a gather waits for.
  struct Wait {
    std::string unit;
    std::string owner;
    std::string reason;
  };

  // INVALID_ARGUMENT: more units than are supported, two units of one name, or no such way. `pool`
  // copies; it, `owners` and `clock` outlive the object.
  static Result<std::unique_ptr<Gather>> Create(Options options, OwnerLinks& owners,
                                                ThreadPool& pool, const Clock& clock);
  ~Gather();

  // The bytes of every unit, in their order. Waits until all owners have registered in `stream`.
  // Errors: those of Plan.
  Result<std::vector<uint64_t>> UnitBytes(const StreamId& stream, const Wanted& wanted);
  // How the unit lies in its buffer. INVALID_ARGUMENT: as UnitPlan::Make. DEADLINE_EXCEEDED: an
  // owner has not registered in time. FAILED_PRECONDITION: an owner refuses this sender, or has
  // begun a later incarnation. CANCELLED. The message names the owner.
  Result<std::shared_ptr<const UnitPlan>> Plan(UnitIndex unit, const StreamId& stream,
                                               const Wanted& wanted);
  // Fills `to`, which has exactly the unit's bytes; gaps between tensors stay as they are. OK:
  // every byte is that of `unit.at`. Other errors than those of Plan name unit, version, owner and
  // cause: DEADLINE_EXCEEDED: an owner has not published it in time. ABORTED: an owner no longer
  // has it. UNAVAILABLE: an owner cannot be read, or has gone on to another version meanwhile.
  // DATA_LOSS: an owner's bytes are not as it says. After an error the bytes are of no version.
  Status Run(const UnitAt& unit, MutableByteSpan to, const Wanted& wanted);

  std::vector<Wait> waits() const;
  // "unit 'layers.0'"; the unit exists.
  std::string NameOf(UnitIndex unit) const;
  // Which way brought how many bytes since the start.
  std::vector<SourceChain::Total> totals() const { return reader_->totals(); }
  // Why an owner's last bytes did not come by an earlier way.
  SourceChain::Last last(TrainerRank owner) const { return reader_->last(owner); }
  // Ends all gathers, present and future, with CANCELLED.
  void Stop();

 private:
  struct Attempt;
  // A plan, and the layouts that it was made of.
  struct Planned {
    std::vector<std::shared_ptr<const RankLayout>> layouts;
    std::shared_ptr<const UnitPlan> plan;
  };
  Gather(Options options, OwnerLinks& owners, ThreadPool& pool, const Clock& clock);
  // Looks what it has to wait for, again after each change, until that is nothing. Errors: those of
  // `look`; DEADLINE_EXCEEDED and CANCELLED name the first owner that is waited for.
  using Look = std::function<Result<std::vector<Wait>>()>;
  Status Await(const Wanted& wanted, const Look& look);
  Result<Planned> MakePlan(UnitIndex unit, const StreamId& stream, const Wanted& wanted);
  // Reads all parts, those of several owners at the same time.
  Status ReadParts(Attempt& attempt);
  Status ReadPart(const UnitPlan::Part& part, const SenderWelcome& owner, Attempt& attempt);
  // OK: the gather is to go on.
  Status Continues(const Wanted& wanted) const;

  const Options options_;
  OwnerLinks& owners_;
  const Clock& clock_;
  Cancellation stopped_;
  std::unique_ptr<PartReader> reader_;
  mutable Mutex mutex_;
  std::map<UnitIndex, Planned> plans_ GUARDED_BY(mutex_);
  uint64_t waits_begun_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::vector<Wait>> waits_ GUARDED_BY(mutex_);  // by number
  Executor readers_;
};

}  // namespace dws
