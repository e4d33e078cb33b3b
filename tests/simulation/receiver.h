// A simulated receiver: the shell around SubscriptionState, receiver_plan, CommitState, the
// receiver's ledger and, in a commit group, GroupMemberState and GroupLeaderState; as
// receiver_daemon is over gRPC and shared memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/sync_state/commit_state.h"
#include "common/sync_state/group_leader_state.h"
#include "common/sync_state/group_member_state.h"
#include "common/sync_state/receiver_plan.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/engine.h"
#include "tests/simulation/network.h"
#include "tests/simulation/weights.h"

namespace dws::sim {

// Of a receiver that serves an engine together with others.
struct GroupPlace {
  uint32_t index = 0;  // 0: the leader
  std::shared_ptr<std::vector<Receiver*>> members;
};

class Receiver final : public Process {
 public:
  Receiver(World& world, uint32_t site, std::string name, Engine& engine, GroupPlace group);

  // The senders' words; `slot` numbers their addresses.
  std::optional<uint32_t> SlotOf(ConnectionId connection) const;
  void OnWelcome(uint32_t slot, const SenderWelcome& welcome);
  void OnAnnounce(uint32_t slot, uint64_t nonce, const SenderAnnouncement& announcement);
  // The engine's.
  void OnAttach();
  void OnEngineGone();
  // As the leader of a group.
  void OnMemberConnect(uint32_t member, const LinkPtr& link);

  ReceiverDisk& disk() { return disk_; }
  bool HasCommitted(const VersionAt& at) const;

 protected:
  void OnStart() override;
  void OnCrash() override;

 private:
  // What is to be written of one trainer rank, verified.
  struct PreparedRank {
    struct Word {
      uint32_t slice = 0;
      uint32_t word = 0;
      uint64_t value = 0;  // absolute, or the step of a word that was too much to stage
    };
    PublishedState published;
    std::vector<Word> staged;
    std::vector<Word> in_place;
    std::vector<std::pair<RankSlice, Slice>> full;
  };
  struct Prepared {
    SyncTarget target;
    Way way = Way::kDelta;
    LiveState live;  // when it began
    std::optional<WeightVersion> base;
    std::vector<PreparedRank> ranks;
    size_t open_ranks = 0;
    Status status;
  };
  using PreparedPtr = std::shared_ptr<Prepared>;
  using Done = std::function<void(const Status&)>;
  // One commit under way.
  struct Commit {
    PreparedPtr prepared;
    CommitState state;
    Generation generation;
    uint64_t attachment = 0;
    std::optional<VersionAt> before;
    bool release = true;
    std::function<void(const Status&, bool untouched)> done;
    size_t next_rank = 0;
  };
  using CommitPtr = std::shared_ptr<Commit>;

  // Links (receiver.cc).
  void Connect(uint32_t slot);
  void OnClosed(uint32_t slot);
  void Tell(const SyncTarget& target, std::function<void(Sender&, ConnectionId, Nonce)> what);
  void CatchUp(uint32_t slot);

  // The worker (receiver.cc): one thing at a time.
  void Kick();
  void Round();
  void AcceptStream();
  void Adopt(const VersionAt& target, Done done);
  void Advance(const SyncTarget& target);
  void Finish(const Status& status);
  void Reach(const Prepared& prepared);
  void ForgetLive();

  // Fetch, verify, stage (receiver_prepare.cc).
  template <typename T>
  void Ask(uint32_t slot, std::function<void(Sender&, std::function<void(Result<T>)>)> question,
           std::function<void(Result<T>)> answer);
  void Prepare(const SyncTarget& target, Way way, std::function<void(PreparedPtr)> done);
  void PrepareRank(PreparedPtr prepared, uint32_t rank, std::function<void()> done);
  void FromDescription(PreparedPtr prepared, uint32_t rank, Done done);
  Status StageDelta(Prepared& prepared, uint32_t rank, const Delta& delta,
                    std::vector<RankSlice>& rejected);
  void AddFull(PreparedPtr prepared, uint32_t rank, std::vector<RankSlice> slices, Done done);

  // Commit (receiver_commit.cc).
  void Begin(PreparedPtr prepared, bool release, std::function<void(const Status&, bool)> done);
  void Pause(const CommitPtr& commit);
  void WriteNext(const CommitPtr& commit);
  bool CheckWritten(const Prepared& prepared) const;
  void End(const CommitPtr& commit, const Status& status);
  void Record(const CommitPtr& commit);

  // The group (receiver_group.cc).
  void ConnectToLeader();
  void RunMember();
  void RunLeader();
  void Act(const SendUp& action);
  void Act(const StageTarget& action);
  void Act(const DropStaged& action);
  void Act(const WriteStaged& action);
  void Act(const ReleaseEngine& action);
  void Act(const EndEngine& action);
  void Act(const SendDown& action);
  void Act(const RecordDecided& action);
  void Act(const RecordSettled& action);
  void Act(const PauseEngine& action);
  void Act(const RetryLater& action);
  void OnDown(ConnectionId connection, GroupDown message);
  void BreakRulesOnLoss();
  std::optional<SyncTarget> GroupTarget(const VersionAt& at) const;

  const bool grouped_;
  const GroupPlace group_;
  Engine& engine_;
  ReceiverDisk disk_;
  std::map<StreamId, WeightVersion> committed_;  // what the checker knows: survives everything

  // Forgotten in a crash.
  std::optional<SubscriptionState> subscription_;
  std::vector<LinkPtr> links_;            // by slot
  std::vector<Time> delays_;              // until the next attempt to connect
  std::optional<Generation> attached_;    // what is attached now
  std::optional<Generation> generation_;  // what `live_` is about: looked at between two steps
  uint64_t attachment_ = 0;               // of generation_
  uint64_t last_generation_ = 0;
  LiveState live_;
  bool busy_ = false;
  bool kicked_ = false;
  bool staging_ = false;  // busy with a group's target
  bool adoption_tried_ = false;
  std::optional<StageTarget> to_stage_;  // for the group, when it is not busy
  uint64_t attempt_ = 0;                 // a later one makes what an earlier one fetches void
  Time retry_delay_ = 0;
  std::optional<GroupMemberState> member_;
  LinkPtr leader_link_;
  PreparedPtr staged_;  // for the group
  std::optional<GroupLeaderState> leader_;
  std::vector<LinkPtr> member_links_;
  std::optional<VersionAt> group_before_;  // what the group ran with last, for mutations
};

}  // namespace dws::sim
