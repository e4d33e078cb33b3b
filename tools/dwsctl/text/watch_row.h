// What `watch` shows of one daemon, made of its last two statuses. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "proto/admin.pb.h"

namespace dws::dwsctl {

struct WatchRow {
  enum class Mood { kFine, kWaiting, kTrouble };

  std::string name;            // clean: receiver id, "sender 0", or the target until it answered
  std::string version;         // committed; of a sender the newest
  std::string lag;             // versions behind; of a sender its slowest present receiver
  std::string density;         // of the last commit or version
  std::string wire;            // bytes of the last commit or version
  std::string stage;           // in words
  std::optional<double> done;  // share of the stage
  std::string pause;           // of the engine at the last commit; of the trainer
  std::string rate;            // bytes a second
  Mood mood = Mood::kFine;
  std::string note;         // clean, below the row: why it is not ready or not reached
  double unix_seconds = 0;  // when the daemon said it
};

// `previous` is the status before, for the rate; may be null.
WatchRow MakeWatchRow(const v1::StatusReply& status, const v1::StatusReply* previous);
// Of a daemon that does not answer now: what it said last, if ever, and why it is silent.
WatchRow MakeLostRow(const std::string& target, const v1::StatusReply* last, const Status& why);

// Bytes a second: of what is in flight, else of the last commit; of a sender what it published of
// late. 0: not known.
double WatchRate(const v1::StatusReply& status, const v1::StatusReply* previous);

}  // namespace dws::dwsctl
