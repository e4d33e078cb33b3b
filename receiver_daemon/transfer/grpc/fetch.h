// The three questions a receiver asks one sender: blocking calls, each with a deadline, resumed
// when they break.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "common/base/status.h"
#include "common/model/delta_profile.h"
#include "proto/sync.grpc.pb.h"
#include "receiver_daemon/peers/active_calls.h"
#include "receiver_daemon/transfer/sender_group.h"

namespace dws {

// Errors as SenderGroup's, and those of `check_peer`, which checks the peer of each call before its
// answer is used.
class Fetcher {
 public:
  using PeerCheck = std::function<Status(const grpc::ClientContext&)>;

  // `layout`: the signature of that by which slices are numbered.
  Fetcher(std::shared_ptr<v1::SyncService::Stub> stub, ActiveCalls& calls, const Digest& layout,
          PeerCheck check_peer)
      : stub_(std::move(stub)),
        calls_(calls),
        layout_(layout),
        check_peer_(std::move(check_peer)) {}

  Result<Spool> Object(const StreamId& stream, WeightVersion base, WeightVersion version,
                       DeltaProfile profile, const SliceSelection& slices, Spool::Options options);
  Result<Description> Describe(const StreamId& stream, WeightVersion version);
  Result<FetchedFull> Full(const StreamId& stream, WeightVersion version, const RankLayout& layout,
                           std::span<const RankSlice> slices, Spool::Options options);

 private:
  const std::shared_ptr<v1::SyncService::Stub> stub_;
  ActiveCalls& calls_;
  const Digest layout_;
  const PeerCheck check_peer_;
};

}  // namespace dws
