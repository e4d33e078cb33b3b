#include "tests/simulation/network.h"

#include <algorithm>

#include "tests/simulation/course.h"

namespace dws::sim {
namespace {
// How long an end takes to notice that nothing arrives any longer.
constexpr Time kSilenceMin = 2 * kRoundTrip;
constexpr Time kSilenceMax = 5 * kRoundTrip;
}  // namespace

void Link::Send(Side from, std::function<void()> arrive) {
  if (!open_[from] || dead_[from]) return;
  const Side to = Other(from);
  Network& network = course_.network;
  if (network.Loses(*ends_[from], *ends_[to])) {
    dead_[from] = true;
    return Break();
  }
  const bool far = ends_[0]->site() != ends_[1]->site();
  const bool rude = network.faults.rude && far;
  const auto deliver = [self = shared_from_this(), to, arrive = std::move(arrive)] {
    if (self->open_[to]) arrive();
  };
  Time at = course_.events.now() + network.Latency(*ends_[from], *ends_[to]);
  if (!rude) at = last_arrival_[from] = std::max(at, last_arrival_[from] + 1);
  course_.events.After(at - course_.events.now(), deliver);
  if (network.faults.repeats && far && course_.random.Chance(300)) {
    course_.events.After(at - course_.events.now() + course_.random.Below(6 * kRoundTrip), deliver);
  }
}

void Link::Break() {
  Learn(kClient, course_.random.Between(kSilenceMin, kSilenceMax));
  Learn(kServer, course_.random.Between(kSilenceMin, kSilenceMax));
}

void Link::Learn(Side side, Time delay) {
  course_.events.After(delay, [self = shared_from_this(), side] {
    if (!self->open_[side]) return;
    self->open_[side] = false;
    if (self->on_closed[side]) self->on_closed[side]();
  });
}

void Link::Close(Side side) {
  if (!open_[side]) return;
  open_[side] = false;
  const Side other = Other(side);
  const bool told = !dead_[side] && !course_.network.Loses(*ends_[side], *ends_[other]);
  Learn(other, told ? course_.network.Latency(*ends_[side], *ends_[other])
                    : course_.random.Between(kSilenceMin, kSilenceMax));
}

void Link::OnCrash(const Process& process) {
  for (const Side side : {kClient, kServer}) {
    if (ends_[side] == &process) Close(side);
  }
}

bool Network::Loses(const Process& from, const Process& to) {
  if (from.site() == to.site()) return false;
  const auto cut = cuts_.find(std::minmax(from.site(), to.site()));
  if (cut != cuts_.end() && course_.events.now() < cut->second) return true;
  return course_.random.Chance(faults.loss_permille);
}

Time Network::Latency(const Process& from, const Process& to) {
  if (from.site() == to.site()) return 1 + course_.random.Below(10);
  const Time usual = kRoundTrip / 2 - 50 + course_.random.Below(50);
  return faults.slow == 1 ? usual : usual * course_.random.Between(1, faults.slow);
}

bool Network::Datagram(const Process& from, const Process& to, std::function<void()> arrive,
                       Time transfer) {
  if (Loses(from, to)) return false;
  course_.events.After(Latency(from, to) + transfer, std::move(arrive));
  return true;
}

LinkPtr Network::Connect(Process& client, Process& server) {
  auto link = std::make_shared<Link>(course_, ConnectionId(++last_connection_), client, server);
  std::erase_if(links_, [](const auto& old) { return old.expired(); });
  links_.push_back(link);
  return link;
}

void Network::Cut(uint32_t site, uint32_t other, Time duration) {
  cuts_[std::minmax(site, other)] = course_.events.now() + duration;
}

void Network::OnCrash(const Process& process) {
  for (const auto& weak : links_) {
    if (const LinkPtr link = weak.lock()) link->OnCrash(process);
  }
}

}  // namespace dws::sim
