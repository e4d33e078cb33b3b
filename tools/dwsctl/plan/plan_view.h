// Shows the plan of a running job: as a table, as JSON and as a picture. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "proto/admin.pb.h"

namespace dws::dwsctl {

// What one receiver takes. Bytes by trainer rank, if nothing else is said.
struct PlanReceiver {
  struct Delta {
    uint64_t version = 0;
    std::vector<uint64_t> taken;
    uint64_t staging_bytes = 0;
  };

  std::string receiver_id;
  std::vector<uint64_t> taken;  // of full weights, each slice once
  std::vector<uint64_t> held;   // of them by engine rank: what it receives
  // Where full weights wait for their commit.
  uint64_t staging_bytes = 0;  // in memory
  uint64_t staging_file_bytes = 0;
  uint64_t staging_bytes_max = 0;
  std::optional<Delta> delta;  // the last one, if the receiver knows

  // The least cap with which nothing goes to a file: each trainer rank has an equal part of it.
  uint64_t staging_bytes_needed() const {
    return taken.size() * *std::max_element(taken.begin(), taken.end());
  }
};

// What all of them take together.
struct PlanTraffic {
  std::vector<uint64_t> sent;      // by trainer rank
  std::vector<uint64_t> received;  // by receiver; of a delta, by those that know of one

  uint64_t bytes() const { return std::accumulate(sent.begin(), sent.end(), uint64_t{0}); }
};

struct PlanView {
  std::string job_id;
  uint64_t parameters = 0;
  uint64_t model_bytes = 0;
  std::vector<PlanReceiver> receivers;
  PlanTraffic full;
  PlanTraffic delta;
  std::vector<uint64_t> held;  // of full weights by engine rank, of all receivers
  uint64_t slices = 0;         // that receivers take

  // If each engine rank took all weights: ep x P, for each engine with its experts over ep ranks.
  uint64_t all_to_each_bytes() const { return model_bytes * held.size(); }
};

// Makes the plan of a job from the answers of its receivers. INVALID_ARGUMENT: there are none, or
// they do not belong to one job with one layout (the message names two of them), or one takes more
// than the job has.
Result<PlanView> PlanOfJob(const std::vector<v1::PlanReply>& replies);

std::string FormatPlan(const PlanView& view);
std::string FormatPlanJson(const PlanView& view);
// A heat map: a row for each trainer rank, a column for each receiver; darker is more bytes. With
// many of them a cell is several.
std::string FormatPlanSvg(const PlanView& view);

}  // namespace dws::dwsctl
