// The encoding of a version that a receiver gets, depending on the speed of its link:
//   fast    steps: the smallest encoding for which the receiver reads only the old values of the
//           elements that changed
//   wan     for slow links: blocks may be class-split, the smallest encoding of all; the receiver
//           reads all of its old weights once
//   direct  for links that are faster than dense steps are decoded: blocks that changed throughout
//           are raw, sparse blocks are as in fast
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dws {

enum class DeltaProfile : uint8_t { kFast, kWan, kDirect };

// The operator's setting. Auto: a receiver asks for the profile that fits its link's speed, and a
// sender makes that encoding while a receiver asks for it.
enum class ProfileChoice : uint8_t { kAuto, kFast, kWan, kDirect };

// The profile that was chosen; nullopt: auto.
std::optional<DeltaProfile> Decided(ProfileChoice choice);

// "auto", "fast", "wan", "direct".
std::string_view ToString(ProfileChoice choice);
std::optional<ProfileChoice> ProfileChoiceNamed(std::string_view name);

}  // namespace dws
