// A simulated receiver: the product's worker, subscription, engine registry and commit group, as
// receiver_daemon wires them, on a simulated clock, network and disk. This models what the
// product reaches over gRPC, with its reconnects: the streams to the senders, to the group's leader
// and to the engine, and how an engine attaches. The decisions and commits, down to the writes to
// the engine's memory, are the shipped code, compiled with its failpoints: at each of them the
// process may die. Engines of some receivers name boundaries. Not simulated: scrub, verification,
// resync, forgotten streams, drain, engines that say when to commit.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/sync_state/receiver_plan.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/worker/worker.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/fiber.h"
#include "tests/simulation/network.h"
#include "tests/simulation/nodes/engine.h"
#include "tests/simulation/nodes/node.h"
#include "tests/simulation/weights.h"

namespace dws::sim {

class Sender;

class Receiver final : public Node, private Senders {
 public:
  // The receivers of one commit group, the leader first; without a group only this receiver. They
  // share the list, which lives as long as the world.
  using Members = std::shared_ptr<std::vector<Receiver*>>;

  Receiver(World& world, uint32_t site, std::string name, Engine& engine, Members members,
           uint32_t index, const CommitPolicy& policy);
  ~Receiver() override;

  // The senders' side; `slot` numbers their addresses.
  std::optional<uint32_t> SlotOf(ConnectionId connection) const;
  void OnWelcome(uint32_t slot, const SenderWelcome& welcome);
  void OnAnnounce(uint32_t slot, uint64_t nonce, const SenderAnnouncement& announcement);
  // The engine's side. False: it cannot attach now.
  bool Attach();
  void OnEngineGone();

  ReceiverDisk& disk() { return disk_; }
  // The version that it has decided as the leader of a group, and not settled.
  std::optional<VersionAt> decided() const;
  // Returns whether it may have begun to write to its engine's memory and has not ended.
  bool committing() const { return up() && committing_; }
  // The version that it takes its engine's memory for. None: it knows of none, or has not read the
  // memory that is attached now.
  std::optional<VersionAt> believed() const;
  // Returns whether its engine has committed that version.
  bool HasCommitted(const VersionAt& at) const;

 protected:
  void OnStart() override;
  void OnCrash() override;

 private:
  class DiskLedger;
  class MemberWire;
  class Remote;
  class Beside;
  struct Daemon;

  bool grouped() const { return members_->size() > 1; }
  bool leads() const { return index_ == 0; }
  GroupPlace Place() const;

  // The worker's thread: Work runs on its fiber, the others wake it.
  void Work();
  void AwaitChange(uint64_t seen, Duration longest);
  void Sleep(Time time);
  // Begins an operation, and waits until the callback passed to it is called.
  template <typename T>
  T Await(const std::function<void(std::function<void(T)>)>& begin);
  Status OnFailpoint(std::string_view name);
  uint64_t Changes();
  void Kick();  // after every event of the daemon: the worker checks for changes
  void Wake();  // if it waits for a change
  void Resume();
  void CheckStaging();
  // Between its engine's batches.
  void NameBoundaries();
  void OpenBoundary();
  void CheckHeld();
  void CheckBoundary();

  // The streams to the senders.
  void Connect(uint32_t slot);
  void OnClosed(uint32_t slot);
  void CatchUp(uint32_t slot);
  void Tell(const SyncTarget& target, TrainerRank rank,
            std::function<void(Sender&, ConnectionId, Nonce)> what);
  // A request to a sender, and its reply.
  template <typename T>
  using Question = std::function<void(Sender&, std::function<void(Result<T>)>)>;
  template <typename T>
  struct Transfer {
    std::optional<Result<T>> arrived;
    std::function<void(bool)> waiter;
  };
  // The ranks' transfers run in parallel, as in the product's thread pool: the
  // first call begins them all.
  template <typename T>
  struct Transfers {
    VersionAt at;
    std::vector<std::shared_ptr<Transfer<T>>> by_rank;
  };
  template <typename T>
  std::shared_ptr<Transfer<T>> Begin(const SyncTarget& target, TrainerRank rank,
                                     const Question<T>& question);
  template <typename T>
  Result<T> Finish(std::shared_ptr<Transfer<T>> transfer);
  template <typename T>
  Result<T> Ask(const SyncTarget& target, TrainerRank rank, const Question<T>& question,
                Transfers<T>& all);
  void NoteCommitted(const VersionAt& at);

  // What the senders have, over the network.
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& options);
  Status ReadFull(const Piece& piece, FullAssembly& assembly);
  // The slices as their sender has them.
  Result<std::vector<Slice>> ReadSlices(const Piece& piece, const std::vector<RankSlice>& slices);

  // Senders, for the worker.
  Result<Description> Describe(const SyncTarget& target, TrainerRank rank) override;
  void Staged(const SyncTarget& target, TrainerRank rank) override;
  void Committed(const SyncTarget& target, TrainerRank rank,
                 const CommittedReport& report) override;
  void Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) override;

  // The engine's lease.
  void OnCommand(const std::shared_ptr<EngineLease>& lease, const LeaseCommand& command);

  // The group's streams.
  void ConnectToLeader();
  void OnMember(Receiver& member, const LinkPtr& link);
  void OnLeaderWelcome(const LinkPtr& link);
  void OnUp(Receiver& member, const LinkPtr& link, const GroupUp& message);
  void OnDown(const LinkPtr& link, const GroupDown& message);
  void TickGroup();

  const Members members_;
  const uint32_t index_;
  const CommitPolicy policy_;  // of the leader
  Engine& engine_;
  ReceiverDisk disk_;
  std::map<StreamId, WeightVersion> committed_;  // for the checker: survives crashes

  // Lost in a crash.
  std::unique_ptr<Daemon> daemon_;
  std::unique_ptr<Fiber> worker_;
  bool idle_ = false;    // the worker waits for a change after `seen_`
  bool kicked_ = false;  // and is about to check
  uint64_t seen_ = 0;
  uint64_t wait_ = 0;           // number of the current wait
  bool fetched_ = false;        // since the memory was read
  bool fetched_full_ = false;   // in this preparation of a version
  bool written_ = false;        // since the group ordered it
  uint64_t boundaries_ = 0;     // named so far
  uint64_t open_ = 0;           // of these
  Generation generation_;       // of the engine's registration
  uint64_t attachment_ = 0;     // of the engine
  uint64_t written_to_ = 0;     // the attachment that was written to last
  uint64_t read_of_ = 0;        // the attachment whose memory was read last
  bool committing_ = false;     // from an intent to the end of the worker's turn
  std::vector<LinkPtr> links_;  // by slot
  std::vector<Time> delays_;    // until the next attempt to connect
  Transfers<std::vector<std::byte>> objects_;
  Transfers<PublishedState> descriptions_;
  LinkPtr leader_link_;
  std::optional<ConnectionId> leader_connection_;
  std::vector<std::shared_ptr<MemberWire>> wires_;  // the leader's, by member
};

}  // namespace dws::sim
