// A receiver's reports to senders that it knows through a shared directory only: one small file for
// each trainer rank, written after every change, and every kSharedReportInterval so that senders
// see that it lives. If it cannot be written, versions are followed all the same.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/service/peers/receiver_name.h"
#include "common/transport/shared_fs/sealed_file.h"
#include "proto/shared_fs.pb.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

// Lifecycle: Start, then Stop, which writes the last news. Threads: safe from any; no call but Stop
// blocks.
class SharedReporter {
 public:
  struct Options {
    ReceiverName name;
    std::vector<std::string> rank_folders;  // by trainer rank
    shared::Key key;
  };

  // `files` and `subscription` outlive it. INVALID_ARGUMENT: the receiver's id makes no name.
  static Result<std::unique_ptr<SharedReporter>> Create(FileSystem& files,
                                                        const Subscription& subscription,
                                                        Options options);
  ~SharedReporter();

  void Start();
  // Writes the reports once more.
  void Stop();

  void Staged(TrainerRank rank, const VersionAt& at);
  void Committed(TrainerRank rank, const VersionAt& at, const CommittedReport& report);
  void Rejected(TrainerRank rank, const VersionAt& at, const Rejection& rejection);
  // The version is out of reach until the sender writes full tensors: asks for them until a commit.
  void Lacks(TrainerRank rank, const VersionAt& at);

 private:
  SharedReporter(FileSystem& files, const Subscription& subscription, Options options,
                 std::string file_name);
  void WriteAll();
  void Write(size_t rank);
  // The report of a rank, which is about `stream` from now on.
  v1::SharedReport& Of(TrainerRank rank, const StreamId& stream) REQUIRES(mutex_);

  FileSystem& files_;
  const Subscription& subscription_;
  const Options options_;
  const std::string file_name_;
  std::vector<std::string> troubles_;  // of the last writes, by rank; of the thread

  Mutex mutex_;
  std::vector<v1::SharedReport> reports_ GUARDED_BY(mutex_);  // by rank
  LoopThread loop_;
};

}  // namespace dws
