// The simulated network: datagrams for questions and answers, links for streams.
//
// A link behaves as a stream over TCP does: in order, until a message is lost; then nothing more
// arrives in that direction, and each end notices some time later. A *rude* network
// also reorders the messages of a link, and another kind also repeats them.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/sync_state/announcer_state.h"
#include "tests/simulation/process.h"

namespace dws::sim {

// One connection of a client to a server. Lifecycle: shared by both ends and pending messages.
class Link : public std::enable_shared_from_this<Link> {
 public:
  enum Side : size_t { kClient = 0, kServer = 1 };

  Link(Course& course, ConnectionId id, Process& client, Process& server)
      : course_(course), id_(id), ends_{&client, &server} {}

  ConnectionId id() const { return id_; }
  Process& end(Side side) const { return *ends_[side]; }
  bool open(Side side) const { return open_[side]; }
  // Called when this end notices that the link is over; not if it closed it itself or crashed.
  std::function<void()> on_closed[2];

  // Runs `arrive` at the other end if that still holds the link open.
  void Send(Side from, std::function<void()> arrive);
  void Close(Side side);
  void OnCrash(const Process& process);

 private:
  static Side Other(Side side) { return side == kClient ? kServer : kClient; }
  void Break();
  void Learn(Side side, Time delay);

  Course& course_;
  const ConnectionId id_;
  const std::array<Process*, 2> ends_;
  std::array<bool, 2> open_ = {true, true};
  std::array<bool, 2> dead_ = {false, false};  // messages of this end no longer arrive
  std::array<Time, 2> last_arrival_ = {0, 0};
};
using LinkPtr = std::shared_ptr<Link>;

class Network {
 public:
  struct Faults {
    uint64_t loss_permille = 0;
    uint64_t slow = 1;  // latencies are multiplied by up to this
    bool rude = false;  // reorders
    bool repeats = false;
  };
  explicit Network(Course& course) : course_(course) {}

  Faults faults;

  // False: lost.
  bool Datagram(const Process& from, const Process& to, std::function<void()> arrive,
                Time transfer = 0);
  LinkPtr Connect(Process& client, Process& server);
  void Cut(uint32_t site, uint32_t other, Time duration);
  void Heal() { cuts_.clear(), faults = {}; }
  void OnCrash(const Process& process);

  bool Loses(const Process& from, const Process& to);
  Time Latency(const Process& from, const Process& to);

 private:
  Course& course_;
  uint64_t last_connection_ = 0;
  std::vector<std::weak_ptr<Link>> links_;
  std::map<std::pair<uint32_t, uint32_t>, Time> cuts_;  // until when
};

}  // namespace dws::sim
