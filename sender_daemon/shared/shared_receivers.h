// The receivers that follow a shared directory, by the reports they leave there: to the hub each is
// a connected receiver for as long as its report goes on changing, so Waits and status count it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/model/weight_version.h"
#include "common/transport/shared_fs/sealed_file.h"
#include "proto/shared_fs.pb.h"
#include "sender_daemon/serve/receiver_hub.h"

namespace dws {

// Lifecycle: Refresh every now and then; the destructor disconnects all. Threads: one at a time.
class SharedReceivers {
 public:
  struct Place {
    std::string job_id;
    TrainerRank rank;
    std::string folder;  // of the reports
    shared::Key key;
  };
  // Called for each refusal that is new; `current`: the hub counted it.
  using OnRejected = std::function<void(const v1::SharedReport& report, bool current)>;

  SharedReceivers(FileSystem& files, ReceiverHub& hub, Place place, OnRejected on_rejected);
  ~SharedReceivers();

  // Reads all reports. True: a receiver could not read what lies in the directory.
  bool Refresh();

  size_t present() const;
  size_t known() const { return receivers_.size(); }
  // Whether one that is present has not come past what it could not read.
  bool Stuck() const;
  // Whether one that is present has yet to commit `version` of `stream`.
  bool Awaited(const StreamId& stream, WeightVersion version) const;
  // Whether no receiver that is present needs `version` of `stream`, or a delta from it on. Not
  // known before kSharedPresenceTimeout have passed since the first Refresh.
  bool AllBeyond(const StreamId& stream, WeightVersion version) const;

 private:
  class Connection;
  struct Receiver {
    v1::SharedReport report;
    TimePoint changed_at;  // when the report was last seen to change
    std::optional<ConnectionId> id;
    std::shared_ptr<Connection> connection;
    std::vector<uint64_t> earlier;  // sessions
    bool twice = false;             // one of them has come back
  };

  // True as Refresh.
  bool Take(const std::string& name, v1::SharedReport report);
  // Whether a report with another session than the last is of one before it. False: that one is
  // earlier by now.
  bool IsOlder(Receiver& receiver, const v1::SharedReport& report) const;
  void Connect(Receiver& receiver);
  void Disconnect(Receiver& receiver);
  // Tells the hub what is new since `before`; true as Refresh.
  bool Tell(Receiver& receiver, const v1::SharedReport& before);
  // Of the reports to read.
  Result<std::set<std::string>> Names();
  Result<v1::SharedReport> Read(const std::string& name) const;
  void Note(const std::string& name, std::string_view event, const Status& status);

  FileSystem& files_;
  ReceiverHub& hub_;
  const Place place_;
  const OnRejected on_rejected_;
  std::map<std::string, Receiver> receivers_;    // by file, while that is there
  std::map<std::string, std::string> troubles_;  // logged last, by file; "": of all
  std::optional<TimePoint> since_;               // the first Refresh
};

}  // namespace dws
