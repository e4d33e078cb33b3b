// The receivers that follow a shared directory, known from the reports that they write there. The
// hub treats each as a connected receiver while its report keeps changing, so Waits and status
// count it.
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

// Lifecycle: call Refresh repeatedly; the destructor disconnects all. Threads: one at a time.
class SharedReceivers {
 public:
  struct Place {
    std::string job_id;
    TrainerRank rank;
    std::string view = {};  // that they follow; empty: the trainer's own tensors
    std::string folder;     // of the reports
    shared::Key key;
  };
  // Called for each new refusal. `current`: true if the hub counted it.
  using OnRejected = std::function<void(const v1::SharedReport& report, bool current)>;

  SharedReceivers(FileSystem& files, ReceiverHub& hub, Place place, OnRejected on_rejected);
  ~SharedReceivers();

  // Reads all reports. True: a receiver could not read data in the directory.
  bool Refresh();

  size_t present() const;
  size_t known() const { return receivers_.size(); }
  // Returns whether a present receiver has not committed a version after one that it could not
  // read.
  bool Stuck() const;
  // Returns whether a present receiver has not committed `version` of `stream`.
  bool Awaited(const StreamId& stream, WeightVersion version) const;
  // The newest version of `stream` that a present receiver has reported to be out of its reach for
  // lack of full tensors, and has not committed.
  std::optional<WeightVersion> Lacking(const StreamId& stream) const;
  // Returns whether no present receiver needs `version` of `stream`, or a delta from it. Returns
  // false until kSharedPresenceTimeout after the first Refresh, because it is not known before.
  bool AllBeyond(const StreamId& stream, WeightVersion version) const;

 private:
  class Connection;
  struct Receiver {
    v1::SharedReport report;
    TimePoint changed_at;  // when the report was last seen to change
    std::optional<ConnectionId> id;
    std::shared_ptr<Connection> connection;
    std::vector<uint64_t> earlier;  // previous sessions
    bool twice = false;             // a previous session came back
  };

  // Result as Refresh.
  bool Take(const std::string& name, v1::SharedReport report);
  // Returns whether `report`, whose session differs from the last report's session, belongs to a
  // session before that one. If false, the last report's session is added to the previous ones.
  bool IsOlder(Receiver& receiver, const v1::SharedReport& report) const;
  void Connect(Receiver& receiver);
  void Disconnect(Receiver& receiver);
  // Reports changes since `before` to the hub. Result as Refresh.
  bool Tell(Receiver& receiver, const v1::SharedReport& before);
  // File names of the reports to read.
  Result<std::set<std::string>> Names();
  Result<v1::SharedReport> Read(const std::string& name) const;
  void Note(const std::string& name, std::string_view event, const Status& status);

  FileSystem& files_;
  ReceiverHub& hub_;
  const Place place_;
  const OnRejected on_rejected_;
  std::map<std::string, Receiver> receivers_;    // by file name, while the file exists
  std::map<std::string, std::string> troubles_;  // last logged, by file name; "": the folder
  std::optional<TimePoint> since_;               // time of the first Refresh
};

}  // namespace dws
