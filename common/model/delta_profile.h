// Which of a version's encodings a link gets, by how the link's speed compares with the coding's.
// Fast: steps, the smallest that needs no more of the receiver than the old values of what changed.
// Wan, for slow links: blocks may be class-split, the smallest there is, for which the receiver
// reads all of its old weights once. Direct, for links faster than dense steps decode: what changed
// throughout is raw, sparse blocks are as in fast.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace dws {

enum class DeltaProfile : uint8_t { kFast, kWan, kDirect };

// What an operator says about it. Auto: a receiver asks for what fits the speed of its link, and a
// sender makes it while somebody asks.
enum class ProfileChoice : uint8_t { kAuto, kFast, kWan, kDirect };

// What it decides; nullopt: auto.
std::optional<DeltaProfile> Decided(ProfileChoice choice);

// "auto", "fast", "wan", "direct".
std::string_view ToString(ProfileChoice choice);
std::optional<ProfileChoice> ProfileChoiceNamed(std::string_view name);

}  // namespace dws
