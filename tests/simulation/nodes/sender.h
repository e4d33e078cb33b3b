// A simulated sender: models sender_daemon around AnnouncerState, RetainedChain and the sender's
// ledger, with simulated links in place of gRPC.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/sync_state/retained_chain.h"
#include "tests/simulation/disk.h"
#include "tests/simulation/network.h"
#include "tests/simulation/nodes/node.h"
#include "tests/simulation/weights.h"

namespace dws::sim {

class Receiver;

class Sender final : public Node {
 public:
  Sender(World& world, uint32_t site, std::string name, uint32_t rank)
      : Node(world, site, std::move(name)), rank_(rank), disk_(*this) {}

  // The trainer's side. A session ends with this process, or when another trainer registers.
  // FAILED_PRECONDITION: an old stream.
  Status Register(const StreamId& stream, std::function<void(uint64_t session)> done);
  bool HasSession(uint64_t session) const { return up() && session_ == session; }
  // Captures. RESOURCE_EXHAUSTED: too many versions wait for the ledger. FAILED_PRECONDITION: no
  // such session, or the version does not increase.
  Status Publish(uint64_t session, WeightVersion version, const RankWeights& weights);

  // The receivers' side.
  void OnConnect(const std::string& receiver_id, const LinkPtr& link, Receiver& receiver);
  void OnStaged(ConnectionId connection, Nonce nonce, const VersionAt& at);
  void OnCommitted(ConnectionId connection, const RankVersion& version, Receiver& receiver);
  void OnNack(ConnectionId connection, Nonce nonce, const VersionAt& at);
  Result<std::vector<std::byte>> Object(const StreamId& stream, WeightVersion base,
                                        WeightVersion version);
  Result<PublishedState> Describe(const VersionAt& at);
  // Full slices, read one after the other while captures continue.
  using FullDone = std::function<void(Result<std::vector<Slice>>)>;
  void ReadFull(const VersionAt& at, std::vector<RankSlice> slices, FullDone done);

  SenderDisk& disk() { return disk_; }
  // What it knows of its receivers.
  const AnnouncerState& hub() const { return hub_; }

 protected:
  void OnStart() override {}
  void OnCrash() override;

 private:
  struct Retained {
    WeightVersion version;
    std::optional<WeightVersion> base;
    Delta delta;
    RankWeights weights;
    std::vector<Digest> after;  // their digests
  };
  // sender_daemon/publish/rank_state
  struct State {
    StreamId stream;
    RankEpoch epoch;
    std::optional<WeightVersion> captured;
    RankWeights snapshot = {};
    RetainedChain chain;
    std::deque<Retained> log;
    std::deque<Retained> sealing;  // captured, not recorded yet
  };
  struct FullRead;
  struct Peer {
    LinkPtr link;
    Receiver* receiver = nullptr;
  };

  Status CheckStreamOf(const StreamId& stream) const;
  const Retained* Find(WeightVersion version) const;
  void RecordNext();
  void Retain(Retained version);
  void Welcome(ConnectionId connection);
  void Announce(ConnectionId connection);
  void Say(ConnectionId connection, std::function<void(Receiver&, uint32_t slot)> what);
  void ReadNext(const std::shared_ptr<FullRead>& read);

  const uint32_t rank_;
  SenderDisk disk_;
  AnnouncerState hub_;
  std::map<ConnectionId, Peer> peers_;
  std::optional<State> state_;
  std::optional<uint64_t> session_;
  uint64_t last_session_ = 0;
};

}  // namespace dws::sim
