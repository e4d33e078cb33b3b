#include "common/transport/fabric/nearest_nic.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>
#include <tuple>

namespace dws {
namespace {

constexpr size_t kSamples = 64;

}  // namespace

std::optional<size_t> NearestNic(std::span<const Nic> nics, std::optional<int> node) {
  const auto value = [&node](const Nic& nic) {
    const bool near = node.has_value() && nic.numa_node == node;
    return std::tuple(nic.up, near, nic.bits_per_second);
  };
  const auto best = std::max_element(
      nics.begin(), nics.end(), [&](const Nic& a, const Nic& b) { return value(a) < value(b); });
  if (best == nics.end()) return std::nullopt;
  return static_cast<size_t>(best - nics.begin());
}

// move_pages(2) without target nodes says where pages are and moves none. Called directly: glibc
// has no wrapper, and libnuma is not needed for one call.
std::optional<int> NumaNodeOf(ByteSpan memory) {
  if (memory.empty()) return std::nullopt;
  std::array<const void*, kSamples> pages = {};
  std::array<int, kSamples> nodes = {};
  for (size_t i = 0; i < kSamples; ++i) pages[i] = memory.data() + memory.size() / kSamples * i;
  if (::syscall(SYS_move_pages, 0, kSamples, pages.data(), nullptr, nodes.data(), 0) != 0) {
    return std::nullopt;
  }
  std::map<int, size_t> counts;
  for (const int node : nodes) {
    if (node >= 0) ++counts[node];  // negative: an errno
  }
  const auto most =
      std::max_element(counts.begin(), counts.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == counts.end()) return std::nullopt;
  return most->first;
}

std::optional<int> NumaNodeOfPciDevice(const std::string& address) {
  std::ifstream file("/sys/bus/pci/devices/" + address + "/numa_node");
  int node = -1;
  if (!(file >> node) || node < 0) return std::nullopt;
  return node;
}

}  // namespace dws
