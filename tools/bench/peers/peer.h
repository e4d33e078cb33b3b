// Other ways to send changed weights, as their own documents and libraries define them: the
// alternatives of a user. Each encodes the difference of two versions to all bytes that it would
// send, and decodes them again.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "tools/bench/measure/report.h"
#include "tools/bench/measure/workload.h"

namespace dws::bench {

using TensorStates = std::vector<std::vector<std::byte>>;  // by tensor

// Another format, and its encoding of two versions.
struct Peer {
  std::string id;  // "P2a"
  std::string name;
  std::optional<Bar> bar;  // its bytes divided by ours
  Result<std::vector<std::byte>> (*encode)(std::span<const TensorPair> tensors) = nullptr;
  // Brings `states` from before to after; it may use only the specs of `tensors`.
  Status (*decode)(ByteSpan bytes, std::span<const TensorPair> tensors,
                   TensorStates& states) = nullptr;
};

// Format B of slime: one compressed entry for each changed tensor, and an index.
Peer SlimeXor();
Peer SlimeOverwrite();
// Format A of slime: positions and values of all tensors in two tensors.
Peer SlimeIndices();
Peer SlimeDeltas();
Peer SlimeDeltasZstd();
// Gaps and XOR masks in buckets, as NeMo-DCR lays them out.
Peer GapXor();
// zstd with the old weights as prefix: the command's --patch-from.
Peer ZstdPatch();
// The xdelta3 program.
Peer Xdelta();
// Indices and values as safetensors entries.
Peer SparseTensors();

// In the order of the report.
std::vector<Peer> AllPeers();

}  // namespace dws::bench
