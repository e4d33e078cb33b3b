// The ways by which full tensors come to a receiver from a sender.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace dws {

// Best first.
enum class FullWay : uint8_t {
  kSameHost,  // from the sender's memory, which this process maps
  kFabric,    // from the sender's memory, by reads of a network adapter
  kGrpc,      // over the connection
};
inline constexpr std::array kFullWays = {FullWay::kSameHost, FullWay::kFabric, FullWay::kGrpc};

// What an operator configures: one way and no other, or nullopt: the best that works.
using FullWayChoice = std::optional<FullWay>;

// "same-host", "fabric", "grpc".
std::string_view ToString(FullWay way);
// As ToString, and "auto". False: no such name, `choice` is unchanged.
bool ParseFullWay(std::string_view name, FullWayChoice& choice);

}  // namespace dws
