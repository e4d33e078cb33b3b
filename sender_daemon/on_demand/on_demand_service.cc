#include "sender_daemon/on_demand/on_demand_service.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <future>
#include <utility>

#include "common/base/log/log.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/run_on.h"
#include "common/model/limits.h"
#include "common/proto_convert/train_convert.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/sockets/unix_socket.h"
#include "common/train_state/train_limits.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

constexpr size_t kFollowersMax = 8;
constexpr size_t kDescriptors = 4;  // of a Join

// One gather: ends when the rank gives it up. Owns itself until it is done.
class GatherCall final : public grpc::ServerUnaryReactor {
 public:
  const Cancellation& given_up() const { return given_up_; }
  void OnCancel() override { given_up_.Cancel(); }
  void OnDone() override { delete this; }

 private:
  Cancellation given_up_;
};

// Until when a call may wait, by the clock that waits go by: less than it has, so that its caller
// gets the reason.
TimePoint DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  const auto left =
      std::chrono::duration_cast<Duration>(context.deadline() - std::chrono::system_clock::now());
  const Duration answer = std::min<Duration>(left / 10, std::chrono::seconds(1));
  return clock.Now() +
         std::clamp<Duration>(left - answer, Duration::zero(), std::chrono::hours(24));
}

std::string HostName() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this host";
}

}  // namespace

// A process of the rank that has joined. Lifecycle: ends its gathers with it, and waits for them.
class OnDemandService::Member {
 public:
  Member(uint64_t number, HandleRegistrationId handle, std::shared_ptr<RankMemory> memory,
         std::unique_ptr<RankGathers> gathers, MinibatchEngine& engine)
      : number_(number),
        handle_(handle),
        memory_(std::move(memory)),
        gathers_(std::move(gathers)),
        outbox_([this, &engine]() -> Duration {
          const Result<bool> filled = memory_->outbox().Wait(limits::kTick);
          if (!filled.ok()) return limits::kTick;  // the rank is gone: OnHangup comes
          if (*filled) {
            (void)engine.ForMember(number_, [](TrainJob& job) {
              job.OnOutbox();
              return OkStatus();
            });
          }
          return Duration::zero();
        }) {
    outbox_.Start();
  }

  uint64_t number() const { return number_; }
  HandleRegistrationId handle() const { return handle_; }
  RankGathers& gathers() { return *gathers_; }

 private:
  const uint64_t number_;
  const HandleRegistrationId handle_;
  const std::shared_ptr<RankMemory> memory_;
  const std::unique_ptr<RankGathers> gathers_;
  LoopThread outbox_;
};

OnDemandService::OnDemandService(const Parts& parts, dws::Gather::Options gather,
                                 uint64_t first_member)
    : parts_(parts),
      gather_(std::move(gather)),
      followers_(kFollowersMax, parts.clock),
      last_member_(first_member),
      ends_(1, limits::kHandleConnectionsMax) {
  parts_.engine.SetOnView([this] { TellFollowers(); });
}

OnDemandService::~OnDemandService() { Stop(); }

void OnDemandService::Stop() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(stopping_, true)) return;
  }
  parts_.engine.SetOnView(nullptr);
  followers_.EndAll(UnavailableError("the sender is shutting down"), limits::kTick);
  Replace(nullptr);
  ends_.Stop();
}

OnDemandService::MemberPtr OnDemandService::Current(uint64_t number) const {
  MutexLock lock(mutex_);
  return member_ != nullptr && member_->number() == number ? member_ : nullptr;
}

void OnDemandService::Replace(MemberPtr member, std::optional<uint64_t> only) {
  MemberPtr before;
  {
    MutexLock lock(mutex_);
    if (stopping_ && member != nullptr) return;
    if (only.has_value() && (member_ == nullptr || member_->number() != *only)) return;
    before = std::exchange(member_, std::move(member));
  }
  if (before == nullptr) return;
  parts_.handles.Drop(before->handle());
  before->gathers().Cancel();
  // The last owner waits for its gathers: not here.
  (void)ends_.Post([before = std::move(before)] {});
}

void OnDemandService::FillStatus(v1::OnDemandStatus& status) const {
  MemberPtr member;
  {
    MutexLock lock(mutex_);
    member = member_;
    status.set_gather_wait_seconds(waits_.gather_seconds());
    status.set_push_wait_seconds(waits_.push_seconds());
    status.set_decision_wait_seconds(waits_.decision_seconds());
  }
  if (member == nullptr) return;
  for (const SourceChain::Total& total : member->gathers().totals()) {
    if (total.source == "same-host") {
      status.set_gathered_mapped_bytes(status.gathered_mapped_bytes() + total.bytes);
    } else if (total.source == "host-cache") {
      status.set_gathered_cached_bytes(status.gathered_cached_bytes() + total.bytes);
    } else if (total.source == "fabric") {
      status.set_gathered_fabric_bytes(status.gathered_fabric_bytes() + total.bytes);
    } else {
      status.set_gathered_fetched_bytes(status.gathered_fetched_bytes() + total.bytes);
    }
  }
  for (const dws::Gather::Wait& wait : member->gathers().waits()) {
    status.add_gathers(fmt::format("{}: {}: {}", wait.unit, wait.owner, wait.reason));
  }
}

grpc::ServerUnaryReactor* OnDemandService::Join(grpc::CallbackServerContext* context,
                                                const v1::JoinRequest* request,
                                                v1::JoinReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const std::optional<UnixPeer> peer = PeerOfCall(context->peer());
  if (!parts_.trainer_executor.Post([this, reactor, request, reply, peer] {
        reactor->Finish(ToGrpc(Expect(*request, peer, *reply)));
      })) {
    reactor->Finish(ToGrpc(ResourceExhaustedError("the sender is busy or shutting down")));
  }
  return reactor;
}

dws::Status OnDemandService::Expect(const v1::JoinRequest& request,
                                    const std::optional<UnixPeer>& peer, v1::JoinReply& reply) {
  DWS_ASSIGN_OR_RETURN(const RankStatePtr state, parts_.state_of(request.session()));
  if (!state->snapshot->newest().has_value()) {
    return FailedPreconditionError("rank {} has not published a version: publish one, then join",
                                   state->trainer_rank.value());
  }
  DWS_ASSIGN_OR_RETURN(JoinOrder order, ParseJoin(request, state->layout()));
  uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = ++last_member_;
  }
  const std::string process =
      peer.has_value() ? fmt::format("pid {} on {}", peer->pid, HostName()) : "";
  auto id = std::make_shared<std::promise<HandleRegistrationId>>();
  std::shared_future<HandleRegistrationId> handle = id->get_future().share();
  DWS_ASSIGN_OR_RETURN(
      const HandleSocket::Registration expected,
      parts_.handles.Expect(
          {.descriptor_count = kDescriptors,
           .peer = peer,
           .on_descriptors =
               [this, number, ranks = state->world_size, order = std::move(order), process, handle](
                   std::vector<UniqueFd> descriptors, const UniqueFd& /*connection*/) {
                 return OnDescriptors(number, ranks, order, process, handle.get(),
                                      std::move(descriptors));
               },
           .on_hangup = [this, number](const dws::Status&) { OnHangup(number); }}));
  id->set_value(expected.id);
  reply.set_token(expected.token.data(), expected.token.size());
  reply.set_handle_socket(parts_.handles.path());
  reply.set_member(number);
  return OkStatus();
}

dws::Status OnDemandService::OnDescriptors(uint64_t number, uint32_t ranks, const JoinOrder& order,
                                           const std::string& process, HandleRegistrationId handle,
                                           std::vector<UniqueFd> descriptors) {
  DWS_ASSIGN_OR_RETURN(const std::shared_ptr<RankMemory> memory,
                       RankMemory::Map(order, ranks, std::move(descriptors)));
  // Not while a version is published: on the trainer's thread.
  return RunOn(parts_.trainer_executor, limits::kRpcDeadline, "the join",
               [this, number, order, process, handle, memory] {
                 return Activate(number, order, process, handle, memory);
               });
}

dws::Status OnDemandService::Activate(uint64_t number, const JoinOrder& order,
                                      const std::string& process, HandleRegistrationId handle,
                                      const std::shared_ptr<RankMemory>& memory) {
  // Another process may have registered meanwhile.
  DWS_ASSIGN_OR_RETURN(const RankStatePtr state, parts_.state_of(order.session));
  dws::Gather::Options gather = gather_;
  gather.units = order.units;
  DWS_ASSIGN_OR_RETURN(
      auto gathers,
      RankGathers::Create(
          {.stream = state->stream, .prefetch = order.prefetch, .gather = std::move(gather)},
          memory->TakeArena(), parts_.owners, parts_.pool, parts_.clock));
  DWS_RETURN_IF_ERROR(
      parts_.engine.Join({.member = number,
                          .stream = state->stream,
                          .world_size = state->world_size,
                          .version = state->snapshot->newest().value_or(WeightVersion(0)),
                          .order = order,
                          .process = process,
                          .memory = memory}));
  Replace(std::make_shared<Member>(number, handle, memory, std::move(gathers), parts_.engine));
  return OkStatus();
}

void OnDemandService::OnHangup(uint64_t number) {
  parts_.engine.Leave(number);
  Replace(nullptr, number);
}

grpc::ServerWriteReactor<v1::MinibatchView>* OnDemandService::Follow(
    grpc::CallbackServerContext* context, const v1::FollowRequest* request) {
  const auto [stream, opened] = followers_.Open(context);
  if (!opened) return stream.get();
  {
    MutexLock lock(mutex_);
    views_.emplace(request->member(), stream);
  }
  TellFollowers();
  return stream.get();
}

void OnDemandService::TellFollowers() {
  MutexLock one_at_a_time(telling_);
  std::set<std::pair<uint64_t, LatestStream<v1::MinibatchView>::Ptr>> views;
  {
    MutexLock lock(mutex_);
    views = views_;
  }
  for (const auto& view : views) {
    const auto& [member, stream] = view;
    const Result<v1::MinibatchView> now = parts_.engine.View(member);
    if (!now.ok()) stream->Close(now.status());
    if (now.ok() && stream->Offer(*now)) continue;
    MutexLock lock(mutex_);
    views_.erase(view);
  }
}

grpc::ServerUnaryReactor* OnDemandService::Gather(grpc::CallbackServerContext* context,
                                                  const v1::GatherRequest* request,
                                                  v1::GatherReply* reply) {
  auto* const call = new GatherCall();
  const MemberPtr member = Current(request->member());
  if (member == nullptr) {
    call->Finish(ToGrpc(MinibatchEngine::NotJoined()));
    return call;
  }
  member->gathers().Take(*request, DeadlineOf(*context, parts_.clock), call->given_up(), *reply,
                         [call](const dws::Status& status) { call->Finish(ToGrpc(status)); });
  return call;
}

grpc::ServerUnaryReactor* OnDemandService::ForMember(
    grpc::CallbackServerContext* context, uint64_t member,
    const std::function<dws::Status(TrainJob&)>& what) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(parts_.engine.ForMember(member, what)));
  return reactor;
}

grpc::ServerUnaryReactor* OnDemandService::Finish(grpc::CallbackServerContext* context,
                                                  const v1::FinishRequest* request,
                                                  v1::FinishReply* /*reply*/) {
  if (Current(request->member()) != nullptr) {
    MutexLock lock(mutex_);
    waits_ = request->waits();
  }
  return ForMember(context, request->member(), [request](TrainJob& job) {
    return job.Finish(FromProto(request->attempt()), request->pushes(), request->weight());
  });
}

grpc::ServerUnaryReactor* OnDemandService::Abandon(grpc::CallbackServerContext* context,
                                                   const v1::AbandonRequest* request,
                                                   v1::AbandonReply* /*reply*/) {
  return ForMember(context, request->member(), [request](TrainJob& job) {
    return job.Abandon(FromProto(request->attempt()), request->reason());
  });
}

grpc::ServerUnaryReactor* OnDemandService::Skip(grpc::CallbackServerContext* context,
                                                const v1::SkipRequest* request,
                                                v1::SkipReply* /*reply*/) {
  return ForMember(context, request->member(),
                   [request](TrainJob& job) { return job.Skip(request->minibatch()); });
}

}  // namespace dws
