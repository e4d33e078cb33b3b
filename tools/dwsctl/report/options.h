// Which options of the daemons a report shows with their values. An option that is in neither list
// is left out: it may be a secret under a wrong name.
#pragma once

#include <span>
#include <string_view>

namespace dws::dwsctl {

// An option whose value is no secret. Paths of keys are shown; what is in those files is not.
bool IsShownOption(std::string_view name);
// The options that name files with secrets in them.
std::span<const std::string_view> SecretFileOptions();

}  // namespace dws::dwsctl
