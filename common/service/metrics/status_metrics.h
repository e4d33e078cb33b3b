// Writes what /metrics shows of a status: the options of its fields say it (proto/metric.proto).
#pragma once

#include "common/service/metrics/metrics.h"

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace dws {

// Pure, but for `scrape`. An option that cannot be obeyed is our bug: CHECKed.
void WriteStatusMetrics(const google::protobuf::Message& status, Scrape& scrape);

}  // namespace dws
