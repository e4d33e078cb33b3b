#include "receiver_daemon/engine/attach_queue.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/service/sockets/greediest_peer.h"

namespace dws {
namespace {

Status CheckSizes(const AttachWish& wish) {
  if (wish.engine_world_size == 0 || wish.engine_world_size > limits::kEngineWorldSizeMax ||
      wish.engine_rank >= wish.engine_world_size) {
    return InvalidArgumentError(
        "engine rank {} of world size {}, expected a rank below it and at most {} ranks",
        wish.engine_rank, wish.engine_world_size, limits::kEngineWorldSizeMax);
  }
  if (wish.client.size() > limits::kIdBytesMax) {
    return InvalidArgumentError("a client name of {} bytes, at most {}", wish.client.size(),
                                limits::kIdBytesMax);
  }
  return OkStatus();
}

Result<EngineMapping> Map(const LayoutSet& layouts, const AttachWish& wish) {
  return MapEngine(layouts, wish.views, SizesOf(wish.regions), wish.excluded);
}

}  // namespace

AttachQueue::AttachQueue(Subscription& subscription, EngineRegistry& registry,
                         HandleSocket& handles, const Clock& clock, ChangeSignal& changed)
    : subscription_(subscription),
      registry_(registry),
      handles_(handles),
      clock_(clock),
      changed_(changed) {
  thread_ = std::thread([this] { Run(); });
}

AttachQueue::~AttachQueue() { Stop(); }

void AttachQueue::Submit(AttachWish wish, TimePoint deadline, std::function<bool()> cancelled,
                         Done done) {
  Status refused = CheckSizes(wish);
  std::optional<Pending> gives_way;
  if (refused.ok()) {
    MutexLock lock(mutex_);
    if (stopping_) {
      refused = UnavailableError("the receiver is shutting down");
    } else {
      gives_way = TakeGreediest();
      pending_.push_back({.wish = std::move(wish),
                          .since = clock_.Now(),
                          .deadline = deadline,
                          .cancelled = std::move(cancelled),
                          .done = std::move(done)});
    }
  }
  if (gives_way.has_value()) {
    gives_way->done(
        ResourceExhaustedError("{} engine ranks waited to attach, the maximum, and this was the "
                               "oldest of the process with "
                               "most of them",
                               limits::kPendingAttachesMax));
  }
  if (!refused.ok()) return done(refused);
  changed_.Notify();
}

std::optional<AttachQueue::Pending> AttachQueue::TakeGreediest() {
  if (pending_.size() < limits::kPendingAttachesMax) return std::nullopt;
  std::sort(pending_.begin(), pending_.end(),
            [](const Pending& a, const Pending& b) { return a.since < b.since; });
  std::vector<UnixPeer> peers;
  for (const Pending& pending : pending_) peers.push_back(pending.wish.peer.value_or(UnixPeer()));
  const std::optional<size_t> greediest = GreediestPeer(peers);
  DWS_CHECK(greediest.has_value() && *greediest < pending_.size());
  const auto found = pending_.begin() + static_cast<std::ptrdiff_t>(*greediest);
  Pending taken = std::move(*found);
  pending_.erase(found);
  return taken;
}

void AttachQueue::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.Notify();
  if (thread_.joinable()) thread_.join();
  std::vector<Pending> left;
  {
    MutexLock lock(mutex_);
    left.swap(pending_);
  }
  for (const Pending& pending : left)
    pending.done(UnavailableError("the receiver is shutting down"));
}

void AttachQueue::Run() {
  uint64_t seen = 0;
  while (true) {
    std::vector<Pending> taken;
    bool idle = false;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
      taken.swap(pending_);
      idle = taken.empty();
    }
    std::vector<Pending> waiting;
    for (Pending& pending : taken) {
      if (std::optional<Result<AttachGrant>> answer = Try(pending); answer.has_value()) {
        pending.done(*std::move(answer));
      } else {
        waiting.push_back(std::move(pending));
      }
    }
    AskForCuts(waiting);
    {
      MutexLock lock(mutex_);
      for (Pending& pending : waiting) pending_.push_back(std::move(pending));
    }
    // While a request waits, wake up often enough to notice its deadline.
    seen = changed_.WaitBeyond(
        seen, idle ? Duration(limits::kReconnectDelayMax) : Duration(limits::kTick));
  }
}

std::optional<Result<AttachGrant>> AttachQueue::Try(Pending& pending) {
  if (pending.cancelled()) return Result<AttachGrant>(CancelledError("the engine gave up"));
  // After EndForGood every request gets the reason of that, whatever the layout is.
  if (const Status ended = registry_.ended(); !ended.ok()) return Result<AttachGrant>(ended);
  const bool late = clock_.Now() >= pending.deadline;
  Result<LayoutSetPtr> layouts = subscription_.Layouts();
  if (!layouts.ok()) {
    if (late && absl::IsUnavailable(layouts.status())) {
      return Result<AttachGrant>(DeadlineExceededError("{}", Message(layouts.status())));
    }
    if (absl::IsUnavailable(layouts.status())) return std::nullopt;
    return Result<AttachGrant>(layouts.status());
  }
  const AttachWish& wish = pending.wish;
  DWS_CHECK(wish.engine_rank < wish.engine_world_size);  // Submit refuses others
  if (pending.checked != *layouts) {
    pending.checked = *layouts;
    pending.missing = MissingCuts(**layouts, wish.views);
  }
  // If senders cannot be asked, the mapping fails and says which cuts the trainer has to declare.
  if (!pending.missing.empty() && unasked_.ok()) {
    const std::optional<Status> refused = AwaitCuts(pending, late);
    if (refused.has_value()) return Result<AttachGrant>(*refused);
    return std::nullopt;
  }
  Result<EngineMapping> mapping = Map(**layouts, wish);
  if (!mapping.ok()) {
    const bool lacks_cuts = !pending.missing.empty() && !unasked_.ok();
    return Result<AttachGrant>(
        lacks_cuts ? InvalidArgumentError("{}; {}", Message(mapping.status()), Message(unasked_))
                   : mapping.status());
  }
  Result<AttachGrant> grant = Grant({.engine_rank = wish.engine_rank,
                                     .engine_world_size = wish.engine_world_size,
                                     .has_hook = wish.has_hook,
                                     .commits_on_request = wish.commits_on_request,
                                     .client = wish.client,
                                     .regions = wish.regions,
                                     .views = wish.views,
                                     .mapping = *std::move(mapping),
                                     .layouts = *std::move(layouts)},
                                    wish.peer);
  // An engine that was just restarted waits until we notice that its predecessor has died.
  const bool wait = !late && clock_.Now() < pending.since + limits::kHandleTimeout;
  if (absl::IsAlreadyExists(grant.status()) && wait) return std::nullopt;
  return grant;
}

// Tries the finer layout, made in this process: the senders' work would be useless if the engine
// did not fit that layout either.
Status AttachQueue::CheckFiner(const Pending& pending) const {
  DWS_ASSIGN_OR_RETURN(const LayoutSetPtr finer, pending.checked->Refined(pending.missing));
  DWS_ASSIGN_OR_RETURN(const EngineMapping mapping, Map(*finer, pending.wish));
  if (pending.wish.engine_world_size > 1) return OkStatus();  // other ranks may hold the rest
  const EngineMapping* const all[] = {&mapping};
  return CheckCoverage(*finer, all, registry_.coverage());
}

std::optional<Status> AttachQueue::AwaitCuts(Pending& pending, bool late) {
  // Says which cuts the trainer could declare instead.
  const auto refused = [&](std::string_view why) {
    const Status unmapped = Map(*pending.checked, pending.wish).status();
    return InvalidArgumentError("{}; {}", Message(unmapped), why);
  };
  const Subscription::Refusals refusals = subscription_.refusals();
  if (!pending.refusals.has_value()) {
    if (const Status fits = CheckFiner(pending); !fits.ok()) return fits;
    pending.refusals = refusals.count;
  } else if (*pending.refusals != refusals.count) {
    // Requests that were asked together are refused together: the last one to come made the layout
    // too fine.
    pending.refusals = refusals.count;
    if (pending.since == newest_asker_) return refused(refusals.reason);
  }
  if (!late) return std::nullopt;
  return DeadlineExceededError("{}", Message(refused(subscription_.MissingSenders())));
}

void AttachQueue::AskForCuts(const std::vector<Pending>& waiting) {
  CutWishes needed;
  newest_asker_ = {};
  for (const Pending& pending : waiting) {
    if (pending.missing.empty() || !pending.refusals.has_value()) continue;
    Merge(needed, pending.missing);
    newest_asker_ = std::max(newest_asker_, pending.since);
  }
  unasked_ = subscription_.Want(Subscription::Needed::kToAttach, needed);
}

Result<AttachGrant> AttachQueue::Grant(AttachPlan plan, std::optional<UnixPeer> peer) {
  const size_t descriptors = DescriptorCount(plan.regions);
  DWS_ASSIGN_OR_RETURN(const Generation generation, registry_.Reserve(std::move(plan)));
  EngineRegistry& registry = registry_;
  Result<HandleSocket::Registration> expected = handles_.Expect(
      {.descriptor_count = descriptors,
       .peer = peer,
       // The engine ends its forward passes before it hands its memory over.
       .timeout = limits::kPauseDeadline,
       .on_descriptors =
           [&registry, generation](std::vector<UniqueFd> fds, UniqueFd connection) {
             return registry.OnDescriptors(generation, std::move(fds), std::move(connection));
           },
       .on_hangup = [&registry, generation](const Status& why) { registry.End(generation, why); }});
  if (!expected.ok()) {
    registry_.End(generation, expected.status());
    return expected.status();
  }
  HandleSocket& handles = handles_;
  const HandleRegistrationId id = expected->id;
  registry_.SetDisconnect(generation, [&handles, id] { handles.Drop(id); });
  return AttachGrant{.token = expected->token, .generation = generation};
}

}  // namespace dws
