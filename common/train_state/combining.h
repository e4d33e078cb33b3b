// Which sender of a host adds up the host's pieces for an owner elsewhere: the combiners of a host
// take the owners of other hosts in turn. Each sender decides it by what it knows of all; if two
// know different things for a while, an owner has two combiners on a host or none, and sums are
// right all the same (outbox_state.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/train_state/train_messages.h"

namespace dws {

// Where a rank's sender is.
struct SenderHost {
  std::string id;
  bool combines = false;  // it has room for sums of its host
};

struct Combining {
  std::vector<TrainerRank> ranks;   // of this host, ascending
  std::vector<TrainerRank> owners;  // elsewhere, for which this sender combines
};

// `hosts`: by rank; none: not known. Empty until all are known.
Combining CombiningOf(TrainerRank self, const std::vector<std::optional<SenderHost>>& hosts);

}  // namespace dws
