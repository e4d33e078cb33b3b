// Names are short, because a semicolon on a command line ends the command.
#include "common/transport/fabric/provider.h"

namespace dws {

std::string_view ToString(FabricProvider provider) {
  switch (provider) {
    case FabricProvider::kVerbs:
      return "verbs";
    case FabricProvider::kEfa:
      return "efa";
    case FabricProvider::kTcp:
      return "tcp";
    case FabricProvider::kShm:
      return "shm";
  }
  return "";
}

const char* LibraryName(FabricProvider provider) {
  switch (provider) {
    case FabricProvider::kVerbs:
      return "verbs;ofi_rxm";
    case FabricProvider::kEfa:
      return "efa";
    case FabricProvider::kTcp:
      return "tcp;ofi_rxm";
    case FabricProvider::kShm:
      return "shm";
  }
  return "";
}

std::optional<FabricProvider> FindFabricProvider(std::string_view name) {
  for (const FabricProvider provider : kFabricProviders) {
    if (name == ToString(provider)) return provider;
  }
  return std::nullopt;
}

bool ParseFabricChoice(std::string_view name, FabricChoice& choice) {
  if (name == "off" || name == "auto") {
    choice = {.on = name == "auto"};
    return true;
  }
  const auto provider = FindFabricProvider(name);
  if (!provider.has_value() || provider == FabricProvider::kShm) return false;
  choice = {.on = true, .only = provider};
  return true;
}

}  // namespace dws
