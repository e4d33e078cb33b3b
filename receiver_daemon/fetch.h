// The three questions a receiver asks one sender: blocking calls, each with a deadline, resumed
// when they break.
#pragma once

#include <span>

#include "common/base/status.h"
#include "proto/sync.grpc.pb.h"
#include "receiver_daemon/active_calls.h"
#include "receiver_daemon/sender_group.h"

namespace dws {

// Errors as SenderGroup's.
class Fetcher {
 public:
  Fetcher(v1::SyncService::Stub& stub, ActiveCalls& calls) : stub_(stub), calls_(calls) {}

  Result<Spool> Object(const StreamId& stream, WeightVersion base, WeightVersion version,
                       Spool::Options options);
  Result<Description> Describe(const StreamId& stream, WeightVersion version);
  Result<FetchedFull> Full(const StreamId& stream, WeightVersion version, const RankLayout& layout,
                           std::span<const RankSlice> slices, Spool::Options options);

 private:
  v1::SyncService::Stub& stub_;
  ActiveCalls& calls_;
};

}  // namespace dws
