// Shows the plan of a running job: as a table, as JSON and as a picture. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "proto/admin.pb.h"

namespace dws::dwsctl {

// One receiver's part of a transfer of full weights.
struct PlanReceiver {
  std::string receiver_id;
  std::vector<uint64_t> taken;  // bytes, by trainer rank
};

struct PlanView {
  std::string job_id;
  uint64_t parameters = 0;
  uint64_t model_bytes = 0;
  std::vector<PlanReceiver> receivers;
  std::vector<uint64_t> sent;      // bytes, by trainer rank
  std::vector<uint64_t> received;  // bytes, by receiver
  uint64_t slices = 0;             // that receivers take
  uint64_t host_bytes = 0;         // that engine ranks hold beyond what their receiver takes
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
