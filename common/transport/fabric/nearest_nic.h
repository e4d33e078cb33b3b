// Chooses the network adapter if several fit: the one beside the memory. Between sockets each byte
// would cross a link that the trainer needs.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "common/base/bytes.h"

namespace dws {

// The known facts about an adapter. A plain value.
struct Nic {
  std::string domain;                           // libfabric's name
  std::optional<int> numa_node = std::nullopt;  // nullopt: unknown, or the host has one node
  bool up = true;                               // its link, as far as known
  size_t bits_per_second = 0;                   // 0: unknown
};

// Its index: links that are up come first, then those on `node`, then fast ones, then the order
// given. Nullopt: there is none.
std::optional<size_t> NearestNic(std::span<const Nic> nics, std::optional<int> node);

// The NUMA node that most pages of `memory` are on, by a sample; nullopt: no page is in memory yet,
// or the kernel does not say.
std::optional<int> NumaNodeOf(ByteSpan memory);

// Returns the NUMA node of the PCI device "0000:3b:00.0" according to /sys. Nullopt: /sys does not
// say.
std::optional<int> NumaNodeOfPciDevice(const std::string& address);

}  // namespace dws
