// The times of dws-receiver's versions; the other metrics come from its status
// (proto/receiver_status.proto). docs/metrics.md lists all.
#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/service/metrics/metrics.h"
#include "receiver_daemon/worker/worker_status.h"

namespace dws {

// Lifecycle: outlives the worker that reports to it. Threads: safe from any.
class ReceiverMetrics {
 public:
  ReceiverMetrics(const std::string& job_id, const std::string& receiver_id);

  Metrics& registry() { return registry_; }
  const Metrics& registry() const { return registry_; }

  // Records a committed version. For Worker::Parts::on_commit.
  void OnCommit(const CommitReport& report);
  // The senders were told about a commit; for Worker::Parts::on_acknowledged.
  void OnAcknowledged(Duration took);

 private:
  Metrics registry_;
  Histogram fetch_seconds_;
  Histogram stage_seconds_;
  Histogram commit_seconds_;
  Histogram pause_seconds_;
  std::vector<Histogram> version_seconds_;  // by VersionStage
};

}  // namespace dws
