// Which of a version's two encodings a link gets. Fast: no block needs more of the receiver than
// the old values of what changed. Wan: blocks may be class-split, the smallest there is, for which
// the receiver reads all of its old weights once.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dws {

enum class DeltaProfile : uint8_t { kFast, kWan };

// What an operator says about it. Auto: a receiver asks for wan when its link is slow, and a sender
// makes it while somebody asks.
enum class ProfileChoice : uint8_t { kAuto, kFast, kWan };

// "auto", "fast", "wan".
std::string_view ToString(ProfileChoice choice);
std::optional<ProfileChoice> ProfileChoiceNamed(std::string_view name);

}  // namespace dws
