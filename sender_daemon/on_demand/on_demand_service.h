// The service for the rank beside this sender: it joins training on demand with its memory,
// gathers, pushes and learns what was decided.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "common/base/clock.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "common/service/grpc/latest_streams.h"
#include "common/service/sockets/handle_socket.h"
#include "proto/on_demand.grpc.pb.h"
#include "sender_daemon/on_demand/gather/owner_links.h"
#include "sender_daemon/on_demand/minibatch/join_order.h"
#include "sender_daemon/on_demand/minibatch/minibatch_engine.h"
#include "sender_daemon/on_demand/rank_gathers.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Lifecycle: Stop ends its calls, before the server and the parts end. Threads: safe from any.
class OnDemandService final : public v1::OnDemandService::CallbackService {
 public:
  // All outlive it.
  struct Parts {
    MinibatchEngine& engine;
    OwnerLinks& owners;
    HandleSocket& handles;
    Executor& trainer_executor;
    ThreadPool& pool;
    const Clock& clock;
    // Runs on the trainer's executor: what the session has registered. FAILED_PRECONDITION: it is
    // no longer registered.
    std::function<Result<RankStatePtr>(uint64_t session)> state_of;
  };
  // `gather`: its units aside. `first_member`: above those of every earlier process.
  OnDemandService(const Parts& parts, Gather::Options gather, uint64_t first_member);
  ~OnDemandService() override;

  void Stop();
  void FillStatus(v1::OnDemandStatus& status) const;

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context,
                                 const v1::JoinRequest* request, v1::JoinReply* reply) override;
  grpc::ServerWriteReactor<v1::MinibatchView>* Follow(grpc::CallbackServerContext* context,
                                                      const v1::FollowRequest* request) override;
  grpc::ServerUnaryReactor* Gather(grpc::CallbackServerContext* context,
                                   const v1::GatherRequest* request,
                                   v1::GatherReply* reply) override;
  grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                   const v1::FinishRequest* request,
                                   v1::FinishReply* reply) override;
  grpc::ServerUnaryReactor* Abandon(grpc::CallbackServerContext* context,
                                    const v1::AbandonRequest* request,
                                    v1::AbandonReply* reply) override;
  grpc::ServerUnaryReactor* Skip(grpc::CallbackServerContext* context,
                                 const v1::SkipRequest* request, v1::SkipReply* reply) override;

 private:
  class Member;
  using MemberPtr = std::shared_ptr<Member>;

  dws::Status Expect(const v1::JoinRequest& request, const std::optional<UnixPeer>& peer,
                     v1::JoinReply& reply);
  dws::Status OnDescriptors(uint64_t number, uint32_t ranks, const JoinOrder& order,
                            const std::string& process, HandleRegistrationId handle,
                            std::vector<UniqueFd> descriptors);
  // On the trainer's executor.
  dws::Status Activate(uint64_t number, const JoinOrder& order, const std::string& process,
                       HandleRegistrationId handle, const std::shared_ptr<RankMemory>& memory);
  void OnHangup(uint64_t number);
  // Null: another one has joined, or none.
  MemberPtr Current(uint64_t number) const;
  // Takes the place of the member that is there, if that is `only`, and ends that one.
  void Replace(MemberPtr member, std::optional<uint64_t> only = std::nullopt);
  // Answers with what(job).
  grpc::ServerUnaryReactor* ForMember(grpc::CallbackServerContext* context, uint64_t member,
                                      const std::function<dws::Status(TrainJob&)>& what);
  void TellFollowers();

  const Parts parts_;
  const dws::Gather::Options gather_;
  LatestStreams<v1::MinibatchView> followers_;
  Mutex telling_;  // a follower never gets an older view after a newer one
  mutable Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t last_member_ GUARDED_BY(mutex_);
  MemberPtr member_ GUARDED_BY(mutex_);
  v1::RankWaits waits_ GUARDED_BY(mutex_);  // up to the rank's last Finish
  std::set<std::pair<uint64_t, LatestStream<v1::MinibatchView>::Ptr>> views_ GUARDED_BY(mutex_);
  Executor ends_;  // of members, which wait for their gathers
};

}  // namespace dws
