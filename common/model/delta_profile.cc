#include "common/model/delta_profile.h"

namespace dws {

std::string_view ToString(ProfileChoice choice) {
  switch (choice) {
    case ProfileChoice::kAuto:
      return "auto";
    case ProfileChoice::kFast:
      return "fast";
    case ProfileChoice::kWan:
      return "wan";
  }
  return "unknown";
}

std::optional<ProfileChoice> ProfileChoiceNamed(std::string_view name) {
  for (const ProfileChoice choice :
       {ProfileChoice::kAuto, ProfileChoice::kFast, ProfileChoice::kWan}) {
    if (ToString(choice) == name) return choice;
  }
  return std::nullopt;
}

}  // namespace dws
