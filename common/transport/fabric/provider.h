// The providers of libfabric that DWS uses, and what an operator says about them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace dws {

// Best first.
enum class FabricProvider : uint8_t {
  kVerbs,  // InfiniBand and RoCE
  kEfa,    // of AWS
  kTcp,    // any network; no faster than gRPC
  kShm,    // two processes of one user on one host: for tests
};
inline constexpr std::array kFabricProviders = {FabricProvider::kVerbs, FabricProvider::kEfa,
                                                FabricProvider::kTcp, FabricProvider::kShm};

// "verbs", "efa", "tcp", "shm".
std::string_view ToString(FabricProvider provider);
// libfabric's names for it, such as "verbs;ofi_rxm". The first name that a library has is used.
std::span<const char* const> LibraryNames(FabricProvider provider);
std::optional<FabricProvider> FindFabricProvider(std::string_view name);
// Returns whether the provider drives a network adapter of its own: such providers may be chosen
// automatically.
constexpr bool HasAdapter(FabricProvider provider) {
  return provider == FabricProvider::kVerbs || provider == FabricProvider::kEfa;
}

// "off", "auto", or one provider, never shm: it checks no key, and 1.17 crashes when a process
// opens and closes endpoints again and again. A plain value.
struct FabricChoice {
  bool on = false;
  std::optional<FabricProvider> only = std::nullopt;

  bool Allows(FabricProvider provider) const {
    return on && provider != FabricProvider::kShm && (!only || *only == provider);
  }
  friend bool operator==(const FabricChoice&, const FabricChoice&) = default;
};
// Returns false if there is no such name; then `choice` is unchanged.
bool ParseFabricChoice(std::string_view name, FabricChoice& choice);

}  // namespace dws
