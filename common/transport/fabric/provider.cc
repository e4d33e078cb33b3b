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

std::span<const char* const> LibraryNames(FabricProvider provider) {
  static constexpr std::array kVerbs = {"verbs;ofi_rxm"};
  static constexpr std::array kEfa = {"efa"};
  // One implementation with two names: "net" up to 1.17, "tcp" from 1.18 on. The older one,
  // "tcp;ofi_rxm", is not used: if the other side goes away while a read request is not sent yet,
  // it crashes this process.
  static constexpr std::array kTcp = {"net", "tcp"};
  static constexpr std::array kShm = {"shm"};
  switch (provider) {
    case FabricProvider::kVerbs:
      return kVerbs;
    case FabricProvider::kEfa:
      return kEfa;
    case FabricProvider::kTcp:
      return kTcp;
    case FabricProvider::kShm:
      return kShm;
  }
  return {};
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
