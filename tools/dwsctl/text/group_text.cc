// A receiver's commit group in its status. All names come from other machines, so they are cleaned
// and shortened.
#include <fmt/format.h>

#include <vector>

#include "tools/dwsctl/base/printable.h"
#include "tools/dwsctl/text/status_text.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

constexpr size_t kNameColumns = 20;
constexpr size_t kAddressColumns = 32;
constexpr size_t kIndent = 2;

std::string EngineOf(const v1::GroupMember& member) {
  if (!member.attached()) return "none";
  return member.released() ? "released" : "paused";
}

}  // namespace

std::string FormatGroup(const v1::GroupStatus& group) {
  const std::string name = Printable(group.group_id(), kNameColumns);
  if (group.member_index() > 0) {
    const std::string leader =
        fmt::format("leader {} {}", Printable(group.leader_address(), kAddressColumns),
                    group.leader_connected() ? "connected" : "not connected");
    return fmt::format("{}, member {} of {}, {}; {}{}", name, group.member_index(),
                       group.member_count(), Printable(group.phase(), kNameColumns), leader,
                       group.last_error().empty() ? "" : ": " + group.last_error());
  }
  std::string text = fmt::format("{}, leads {} members, ", name, group.member_count());
  if (group.phase() == "ended") return text + "ended";
  text += group.round_phase().empty()
              ? "no round"
              : fmt::format("{} {}", Printable(group.round_phase(), kNameColumns),
                            FormatVersion(group.round_version()));
  if (group.decided_version() == 0) return text;
  return text + fmt::format(", {} is decided", FormatVersion(group.decided_version()));
}

std::string FormatGroupTable(const v1::GroupStatus& group, size_t columns) {
  if (group.members().empty()) return "";
  std::vector<std::vector<std::string>> rows;
  std::string errors;
  for (int index = 0; index < group.members_size(); ++index) {
    const v1::GroupMember& member = group.members(index);
    const std::string receiver = member.receiver_id().empty() ? "-" : member.receiver_id();
    rows.push_back({fmt::format("{}", index), Printable(receiver, kNameColumns),
                    member.connected() ? "connected" : "not connected", EngineOf(member),
                    FormatVersion(member.live_version()), member.staged() ? "staged" : "-"});
    errors += FormatErrorLine(receiver, member.last_error(), columns);
  }
  return "\n" +
         FormatTable({{.title = "member"},
                      {.title = "receiver", .left = true},
                      {.title = "state", .left = true},
                      {.title = "engine", .left = true},
                      {.title = "version"},
                      {.title = "round", .left = true}},
                     rows, kIndent) +
         errors;
}

}  // namespace dws::dwsctl
