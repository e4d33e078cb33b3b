// What the tests of a receiver's subscription begin with: senders, their welcomes, announcements.
#pragma once

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/sync_state/subscription_state.h"

namespace dws {

inline constexpr StreamId kStream{.incarnation = 5, .id_hi = 0, .id_lo = 11};
inline constexpr StreamId kTwin{.incarnation = 5, .id_hi = 0, .id_lo = 12};
inline constexpr StreamId kOld{.incarnation = 4, .id_hi = 0, .id_lo = 13};
inline constexpr StreamId kNew{.incarnation = 6, .id_hi = 0, .id_lo = 14};
inline constexpr SenderIndex kFirst{0};
inline constexpr SenderIndex kSecond{1};
inline constexpr UnixTime kNow{std::chrono::hours(24 * 365 * 56)};

inline std::shared_ptr<const RankLayout> Layout(const std::string& tensor, uint64_t elements = 8) {
  auto layout = RankLayout::Create({{.tensor = {.name = tensor, .shape = {elements}, .cuts = {}}}});
  REQUIRE(layout.ok());
  return std::make_shared<const RankLayout>(*std::move(layout));
}

inline SenderWelcome Welcome(const StreamId& stream, uint32_t rank, uint32_t world_size,
                             uint64_t epoch = 1,
                             std::shared_ptr<const RankLayout> layout = nullptr) {
  return {.stream = stream,
          .trainer_rank = TrainerRank(rank),
          .world_size = world_size,
          .rank_epoch = RankEpoch(epoch),
          .layout = layout != nullptr ? std::move(layout) : Layout("rank" + std::to_string(rank))};
}

inline SenderAnnouncement Offers(const StreamId& stream, std::vector<uint64_t> versions,
                                 uint64_t epoch = 1) {
  SenderAnnouncement announcement{.stream = stream, .rank_epoch = RankEpoch(epoch), .versions = {}};
  for (const uint64_t version : versions) announcement.versions.emplace_back(version);
  return announcement;
}

// Two senders, both welcomed as ranks 0 and 1 of kStream.
inline SubscriptionState TwoRanks() {
  SubscriptionState state(2, std::nullopt);
  state.OnConnect(kFirst);
  state.OnConnect(kSecond);
  REQUIRE(state.OnWelcome(kFirst, Welcome(kStream, 0, 2), kNow).ok());
  REQUIRE(state.OnWelcome(kSecond, Welcome(kStream, 1, 2), kNow).ok());
  return state;
}

inline uint64_t TargetVersion(const SubscriptionState& state) {
  const auto target = state.Target();
  return target.has_value() ? target->version.value() : 0;
}

}  // namespace dws
