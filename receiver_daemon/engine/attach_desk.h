// Attach requests that wait: for the trainer's layout, and for the rank to be free. Checks them
// when something changes and answers each once.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/memory/region_handle.h"
#include "common/service/sockets/handle_socket.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/peers/change_signal.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

// An AttachRequest as values; nothing is checked but sizes.
struct AttachWish {
  uint32_t engine_rank = 0;
  uint32_t engine_world_size = 1;
  std::vector<RegionHandle> regions;
  std::vector<EngineView> views;
  std::vector<std::string> excluded;
  bool has_hook = false;
  std::string client;
  std::optional<UnixPeer> peer = std::nullopt;  // whose user alone may hand over the memory
};

struct AttachGrant {
  HandleToken token;
  Generation generation;
};

// Lifecycle: one thread from construction to Stop, which answers everybody who waits. Threads: safe
// from any.
class AttachDesk {
 public:
  using Done = std::function<void(Result<AttachGrant>)>;

  AttachDesk(Subscription& subscription, EngineRegistry& registry, HandleSocket& handles,
             const Clock& clock, ChangeSignal& changed);
  ~AttachDesk();

  // `done` is called once, from any thread, without locks. INVALID_ARGUMENT: the wish does not fit
  // (MapEngine, CheckCoverage). DEADLINE_EXCEEDED: the layout was not heard in time; names the
  // senders. ALREADY_EXISTS: the rank stayed taken for limits::kHandleTimeout. RESOURCE_EXHAUSTED:
  // limits::kPendingAttachesMax waited, and it was the oldest of the process with most of them.
  // UNAVAILABLE: the daemon ends.
  void Submit(AttachWish wish, TimePoint deadline, std::function<bool()> cancelled, Done done);

  void Stop();

 private:
  struct Pending {
    AttachWish wish;
    TimePoint since;
    TimePoint deadline;
    std::function<bool()> cancelled;
    Done done;
  };
  void Run();
  // The answer, or nullopt: not yet.
  std::optional<Result<AttachGrant>> Try(const Pending& pending);
  Result<AttachGrant> Grant(AttachPlan plan, std::optional<UnixPeer> peer);
  // One that gives way to another that waits, if there are too many.
  std::optional<Pending> TakeGreediest() REQUIRES(mutex_);

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
