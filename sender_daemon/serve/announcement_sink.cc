// Lists at most 64 receivers, those in trouble first: a status and the page of metrics stay small
// with a thousand.
#include "sender_daemon/serve/announcement_sink.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace dws {
namespace {

uint64_t Number(std::optional<WeightVersion> version) {
  return version.value_or(WeightVersion(0)).value();
}

// How many of `versions` (ascending) a receiver has not committed.
uint64_t Lag(const std::vector<RetainedVersionPtr>& versions,
             std::optional<WeightVersion> committed) {
  return static_cast<uint64_t>(
      std::count_if(versions.begin(), versions.end(), [&](const RetainedVersionPtr& version) {
        return !committed.has_value() || version->version > *committed;
      }));
}

using Entry = std::pair<const std::string, AnnouncerState::Receiver>;

// A status lists so many receivers, and the page of metrics has labels for them alone.
constexpr size_t kListedMax = 64;

enum class Trouble : uint8_t { kRefused, kLeftOut, kAwaited, kBehind, kAbsent, kNone };

Trouble TroubleOf(const AnnouncerState::Receiver& receiver, bool left_out,
                  std::optional<WeightVersion> newest) {
  if (!receiver.last_error.empty()) return Trouble::kRefused;
  if (left_out) return Trouble::kLeftOut;
  if (receiver.awaited) return Trouble::kAwaited;
  if (!receiver.connection.has_value()) return Trouble::kAbsent;
  return receiver.committed < newest ? Trouble::kBehind : Trouble::kNone;
}

void FillPeer(const Entry& entry, v1::ReceiverPeer& peer) {
  const AnnouncerState::Receiver& receiver = entry.second;
  peer.set_receiver_id(entry.first);
  peer.set_present(receiver.connection.has_value());
  peer.set_awaited(receiver.awaited);
  peer.set_committed_version(Number(receiver.committed));
  peer.set_staged_version(Number(receiver.staged));
  peer.set_last_error(receiver.last_error);
  peer.set_pause_seconds(receiver.last_commit.pause_seconds);
  peer.set_stage_seconds(receiver.last_commit.stage_seconds);
  peer.set_fetched_bytes(receiver.last_commit.fetched_bytes);
  peer.set_nacks(receiver.nacks);
}

}  // namespace

std::vector<const Entry*> AnnouncementSink::Listed(
    const std::map<std::string, AnnouncerState::Receiver>& receivers,
    std::optional<WeightVersion> newest) const {
  struct Place {
    Trouble trouble;
    std::optional<WeightVersion> committed;  // those with older versions first
    const Entry* entry;
  };
  std::vector<Place> order;
  for (const Entry& entry : receivers) {
    const bool left_out = entry.second.connection.has_value() && hub_.LeftOut(entry.second);
    order.push_back({TroubleOf(entry.second, left_out, newest), entry.second.committed, &entry});
  }
  if (order.size() > kListedMax) {
    std::ranges::stable_sort(
        order, {}, [](const Place& one) { return std::pair(one.trouble, one.committed); });
    order.resize(kListedMax);
  }
  std::vector<const Entry*> listed;
  for (const Place& place : order) listed.push_back(place.entry);
  std::ranges::sort(listed, {}, [](const Entry* entry) {
    return std::pair(!entry->second.connection.has_value(), std::string_view(entry->first));
  });
  return listed;
}

void AnnouncementSink::FillStatus(v1::SenderStatus& status) const {
  const RankStatePtr rank = hub_.Current();
  const std::vector<RetainedVersionPtr> versions =
      rank == nullptr ? std::vector<RetainedVersionPtr>() : rank->log->All();
  const std::map<std::string, AnnouncerState::Receiver> receivers = hub_.Receivers();
  const auto present = static_cast<uint32_t>(std::ranges::count_if(
      receivers, [](const Entry& entry) { return entry.second.connection.has_value(); }));
  status.set_receivers_present(present);
  status.set_receivers_absent(static_cast<uint32_t>(receivers.size()) - present);
  const auto newest = versions.empty() ? std::nullopt : std::optional(versions.back()->version);
  for (const Entry* entry : Listed(receivers, newest)) {
    const AnnouncerState::Receiver& receiver = entry->second;
    v1::ReceiverPeer& peer = *status.add_receivers();
    FillPeer(*entry, peer);
    peer.set_lag_versions(Lag(versions, receiver.committed));
    if (receiver.connection.has_value()) peer.set_view(hub_.ViewOf(*receiver.connection));
    peer.set_left_out(receiver.connection.has_value() && hub_.LeftOut(receiver));
  }
}

}  // namespace dws
