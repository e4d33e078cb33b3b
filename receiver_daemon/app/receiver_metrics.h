// The metrics of dws-receiver. docs/metrics.md lists the names. This file depends on the parts
// whose state it reads; none of them depends on it.
#pragma once

#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/service/metrics/metrics.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/worker.h"

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

  // The sources that are read at scrape time; all of them must outlive the last scrape.
  struct States {
    const Worker& worker;
    const Subscription& subscription;
    const EngineRegistry& registry;
    const Clock& clock;
    const CommitGroup* group = nullptr;  // null: in no group
  };
  // Call it once, before the first scrape.
  void Show(States states);

 private:
  Metrics registry_;
  Histogram fetch_seconds_;
  Histogram stage_seconds_;
  Histogram commit_seconds_;
  Histogram pause_seconds_;
  std::vector<Histogram> version_seconds_;  // by VersionStage
};

}  // namespace dws
