#include "common/model/delta_profile.h"

namespace dws {

// Auto is not a profile: the sender decides for each receiver, by the profile that it asks for.
std::optional<DeltaProfile> Decided(ProfileChoice choice) {
  switch (choice) {
    case ProfileChoice::kFast:
      return DeltaProfile::kFast;
    case ProfileChoice::kWan:
      return DeltaProfile::kWan;
    case ProfileChoice::kDirect:
      return DeltaProfile::kDirect;
    case ProfileChoice::kAuto:
      break;
  }
  return std::nullopt;
}

std::string_view ToString(ProfileChoice choice) {
  switch (choice) {
    case ProfileChoice::kAuto:
      return "auto";
    case ProfileChoice::kFast:
      return "fast";
    case ProfileChoice::kWan:
      return "wan";
    case ProfileChoice::kDirect:
      return "direct";
  }
  return "unknown";
}

std::optional<ProfileChoice> ProfileChoiceNamed(std::string_view name) {
  for (const ProfileChoice choice :
       {ProfileChoice::kAuto, ProfileChoice::kFast, ProfileChoice::kWan, ProfileChoice::kDirect}) {
    if (ToString(choice) == name) return choice;
  }
  return std::nullopt;
}

}  // namespace dws
