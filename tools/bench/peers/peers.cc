// In the order of the table.
#include "tools/bench/peers/peer.h"

namespace dws::bench {

std::vector<Peer> AllPeers() {
  return {SlimeXor(),    SlimeDeltasZstd(), GapXor(), SlimeOverwrite(), SlimeIndices(),
          SlimeDeltas(), ZstdPatch(),       Xdelta(), SparseTensors()};
}

}  // namespace dws::bench
