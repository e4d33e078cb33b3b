// Attach requests that wait for the trainer's layout, for cuts that it lacks, or for their engine
// rank to be free. Checks them when something changes and answers each once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/memory/region_handle.h"
#include "common/service/peers/change_signal.h"
#include "common/service/sockets/handle_socket.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

// The values of an AttachRequest. Only sizes have been checked.
struct AttachWish {
  uint32_t engine_rank = 0;
  uint32_t engine_world_size = 1;
  std::vector<RegionHandle> regions;
  std::vector<EngineView> views;
  std::vector<std::string> excluded;
  bool has_hook = false;
  bool commits_on_request = false;
  std::string client;
  std::optional<UnixPeer> peer = std::nullopt;  // only this user may hand over the memory
};

// What an engine needs to hand its memory over and open its lease.
struct AttachGrant {
  HandleToken token;
  Generation generation;
};

// Lifecycle: one thread runs from construction to Stop; Stop answers all waiting requests. All
// references must outlive it. Threads: safe from any.
class AttachQueue {
 public:
  using Done = std::function<void(Result<AttachGrant>)>;

  AttachQueue(Subscription& subscription, EngineRegistry& registry, HandleSocket& handles,
              const Clock& clock, ChangeSignal& changed);
  ~AttachQueue();

  // `done` is called once, on any thread, with no lock held. INVALID_ARGUMENT: the wish does not
  // fit the layout, even with the cuts that it needs (MapEngine, CheckCoverage), or the senders
  // refuse these cuts. DEADLINE_EXCEEDED: the layout or the cuts did not arrive in time; the
  // message names the senders. ALREADY_EXISTS: the rank stayed taken for limits::kHandleTimeout, or
  // until the deadline. CANCELLED: `cancelled` returned true. RESOURCE_EXHAUSTED:
  // limits::kPendingAttachesMax requests waited, and this was the oldest of the process with most
  // of them. UNAVAILABLE: the daemon is shutting down. After EngineRegistry::EndForGood: its
  // reason.
  void Submit(AttachWish wish, TimePoint deadline, std::function<bool()> cancelled, Done done);

  void Stop();

 private:
  struct Pending {
    AttachWish wish;
    LayoutSetPtr checked = nullptr;  // `missing` is what this lacks
    CutWishes missing = {};
    std::optional<uint64_t> refusals = std::nullopt;  // so far, when it first asked for cuts
    TimePoint since;
    TimePoint deadline;
    std::function<bool()> cancelled;
    Done done;
  };
  void Run();
  // The answer; nullopt: the request has to wait.
  std::optional<Result<AttachGrant>> Try(Pending& pending);
  // The layout lacks cuts that `pending` needs. Returns its final status, or nullopt if the senders
  // are asked for the cuts, so that it has to wait.
  std::optional<Status> AwaitCuts(Pending& pending, bool late);
  // Returns OK if the finer layout would be sufficient.
  Status CheckFiner(const Pending& pending) const;
  // Asks the senders for the cuts that the requests in `waiting` lack.
  void AskForCuts(const std::vector<Pending>& waiting);
  Result<AttachGrant> Grant(AttachPlan plan, std::optional<UnixPeer> peer);
  // If too many wait: removes the one that gives way to a new request.
  std::optional<Pending> TakeGreediest() REQUIRES(mutex_);

  // Used only by its thread: when the newest request that asks for cuts came, and whether senders
  // can be asked.
  TimePoint newest_asker_;
  Status unasked_;
  Subscription& subscription_;
  EngineRegistry& registry_;
  HandleSocket& handles_;
  const Clock& clock_;
  ChangeSignal& changed_;
  Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::vector<Pending> pending_ GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace dws
