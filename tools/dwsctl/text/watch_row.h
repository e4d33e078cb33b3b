// The row that `watch` shows for one daemon, made from its last two statuses. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "proto/admin.pb.h"

namespace dws::dwsctl {

// The cells of a row.
struct WatchRow {
  enum class Mood { kFine, kWaiting, kTrouble };

  std::string name;            // clean: receiver id, "sender 0", or the target until it answered
  std::string version;         // committed; for a sender the newest
  std::string lag;             // versions behind; for a sender that of its slowest present receiver
  std::string density;         // of the last commit or version
  std::string wire;            // bytes of the last commit or version
  std::string stage;           // as text
  std::optional<double> done;  // share of the stage
  std::string pause;           // of the engine at the last commit; for a sender of the trainer
  std::string rate;            // bytes per second
  Mood mood = Mood::kFine;
  std::string note;         // clean, below the row: why it is not ready or not reachable
  double unix_seconds = 0;  // when the daemon sent the status
};

// `previous` is the status before, needed for the rate; may be null.
WatchRow MakeWatchRow(const v1::StatusReply& status, const v1::StatusReply* previous);
// Makes the row of a daemon that does not answer now: its last status, if any, and why there is no
// newer one.
WatchRow MakeLostRow(const std::string& target, const v1::StatusReply* last, const Status& why);

// Bytes per second: of the version in flight, else of the last commit; for a sender, of the
// versions it published last. 0: not known.
double WatchRate(const v1::StatusReply& status, const v1::StatusReply* previous);

}  // namespace dws::dwsctl
