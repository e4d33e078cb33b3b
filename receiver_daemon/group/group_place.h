// A receiver's place in a commit group, as it is configured.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace dws {

// A receiver's place in its commit group, from the options.
struct GroupPlace {
  std::string group_id;  // empty: in no group
  uint32_t index = 0;    // 0: the leader
  uint32_t member_count = 0;
  std::string leader_address;  // as CheckPeerAddress; of a leader: empty

  bool leads() const { return index == 0; }
};

struct GroupMistake {
  std::string_view option;  // "group-index"
  std::string message;
};

// Returns the mistakes in the combination of the options; none if there is no group.
std::vector<GroupMistake> GroupMistakes(const GroupPlace& group);

}  // namespace dws
