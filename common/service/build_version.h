// The version of this build.
#pragma once

#include <string_view>

namespace dws {

inline constexpr std::string_view kBuildVersion = "0.1.0";

}  // namespace dws
