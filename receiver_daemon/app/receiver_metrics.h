// What dws-receiver counts, and what it shows when somebody scrapes. docs/metrics.md lists the
// names. Knows the parts it reads; none of them knows it.
#pragma once

#include <string>

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

  // A version was committed; for Worker::Parts::on_commit.
  void OnCommit(const CommitReport& report);

  // What is read at scrape time; all of it outlives the last scrape.
  struct States {
    const Worker& worker;
    const Subscription& subscription;
    const EngineRegistry& registry;
    const Clock& clock;
    const CommitGroup* group = nullptr;  // null: in none
  };
  // Once, before the first scrape.
  void Show(States states);

 private:
  Metrics registry_;
  Histogram fetch_seconds_;
  Histogram stage_seconds_;
  Histogram commit_seconds_;
  Histogram pause_seconds_;
};

}  // namespace dws
