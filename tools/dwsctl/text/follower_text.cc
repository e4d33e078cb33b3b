// The lines of a receiver that follows a folder, from the folder to the engine.
#include <fmt/format.h>

#include "tools/dwsctl/text/status_text.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {

std::string FormatFollower(const v1::ReceiverStatus& receiver, size_t columns) {
  const v1::FollowerStatus& follower = receiver.follower();
  std::string engine = "none is controlled";
  if (!follower.engine_url().empty()) {
    engine = fmt::format("{}, {}", follower.engine_url(),
                         follower.loaded()
                             ? fmt::format("version {} loaded, {} loads, the last took {}",
                                           receiver.committed_version(), receiver.commits(),
                                           FormatSeconds(receiver.last_pause_seconds()))
                             : "not known to have loaded a version");
  }
  std::string base = "needs no proof";
  if (follower.unproved()) {
    base = "the next version's is not proved";
  } else if (!follower.base_proved_by().empty()) {
    base = fmt::format("of the last version: {} by {}",
                       follower.base_proved_by() == "nothing" ? "taken, and proved" : "proved",
                       follower.base_proved_by());
  }
  std::string age = FormatSeconds(receiver.seconds_since_version()) + " with this version";
  if (follower.seconds_failing() > 0) {
    age += fmt::format(", not followed for {}{}", FormatSeconds(follower.seconds_failing()),
                       receiver.stale() ? ": stale" : "");
  }
  return FormatKeyLine("receiver", receiver.receiver_id(), columns) +
         FormatKeyLine("folder",
                       fmt::format("{}, newest version {}", follower.folder(),
                                   FormatVersion(receiver.newest_version())),
                       columns) +
         FormatKeyLine("local",
                       fmt::format("{}, version {}, {} applied", follower.checkpoint(),
                                   follower.checkpoint_version(), follower.applied()),
                       columns) +
         FormatKeyLine("engine", engine, columns) + FormatKeyLine("base", base, columns) +
         FormatRows(follower, columns) + FormatKeyLine("stage", receiver.stage(), columns) +
         FormatKeyLine("age", age, columns);
}

}  // namespace dws::dwsctl
