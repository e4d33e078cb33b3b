#include "receiver_daemon/group/group_place.h"

#include <fmt/format.h>

#include "common/model/limits.h"

namespace dws {

// Lists all mistakes at once, so that an operator mends the configuration in one step.
std::vector<GroupMistake> GroupMistakes(const GroupPlace& group) {
  if (group.group_id.empty()) {
    if (group.index == 0 && group.member_count == 0 && group.leader_address.empty()) return {};
    return {{"group-id", "not given, but other options of a group are"}};
  }
  std::vector<GroupMistake> mistakes;
  if (group.group_id.size() > limits::kIdBytesMax) {
    mistakes.push_back({"group-id", fmt::format("has {} bytes, expected at most {}",
                                                group.group_id.size(), limits::kIdBytesMax)});
  }
  if (group.member_count < 2 || group.member_count > limits::kGroupMembersMax) {
    mistakes.push_back({"group-members",
                        fmt::format("is {}, expected the number of receivers of group '{}', 2 to "
                                    "{}",
                                    group.member_count, group.group_id, limits::kGroupMembersMax)});
  } else if (group.index >= group.member_count) {
    mistakes.push_back(
        {"group-index", fmt::format("is {} of {} members, expected at most {}", group.index,
                                    group.member_count, group.member_count - 1)});
  }
  if (group.index == 0 && !group.leader_address.empty()) {
    mistakes.push_back({"group-leader", "given to the leader (group-index 0), which needs none"});
  }
  if (group.index > 0 && group.leader_address.empty()) {
    mistakes.push_back({"group-leader", fmt::format("not given, but member {} of group '{}' has to "
                                                    "know its leader",
                                                    group.index, group.group_id)});
  }
  return mistakes;
}

}  // namespace dws
