// The questions that a receiver, or another sender, asks one sender: blocking calls, each with a
// deadline, resumed when they break.
#pragma once

#include <grpcpp/channel.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/model/delta_profile.h"
#include "common/service/peers/active_calls.h"
#include "common/sources/same_host/host_snapshot.h"
#include "common/sources/same_host/lent_copies.h"
#include "common/sources/sender/full_call.h"
#include "common/sources/sender/link_speed.h"
#include "common/sources/source.h"
#include "common/spool/full_assembly.h"
#include "common/sync_state/receiver_plan.h"
#include "common/transport/fabric/remote_memory.h"
#include "proto/sync.grpc.pb.h"

namespace dws {

// Errors as Source's, and those of `check_peer`, which checks the peer of each call before its
// answer is used.
class Fetcher {
 public:
  using PeerCheck = std::function<Status(const grpc::ClientContext&)>;

  // `layout`: the signature of the layout that numbers the slices. `receiver_id`: of the receiver
  // that asks, if it serves others; else empty.
  Fetcher(std::shared_ptr<grpc::Channel> channel, ActiveCalls& calls, const Digest& layout,
          PeerCheck check_peer, std::string receiver_id = {})
      : channel_(std::move(channel)),
        stub_(v1::SyncService::NewStub(channel_)),
        calls_(calls),
        layout_(layout),
        check_peer_(std::move(check_peer)),
        receiver_id_(std::move(receiver_id)) {}

  Result<Spool> Object(const StreamId& stream, WeightVersion base, WeightVersion version,
                       DeltaProfile profile, const SliceSelection& slices, uint64_t skip_bytes,
                       Spool::Options options);
  // Like Object, but in one call, and for a version whose capture may be open. Errors and result as
  // Source::ReadDeltaCapture's.
  Result<std::vector<std::byte>> ObjectEarly(const SyncTarget& target, TrainerRank rank,
                                             const DeltaWant& want, DeltaProfile profile,
                                             const Spool::Options& options, LinkSpeed& speed,
                                             const FrameTaker& take);
  // Asks again if the connection breaks, at most kFetchAttemptsMax times; then UNAVAILABLE.
  Result<PublishedState> Describe(const StreamId& stream, WeightVersion version);
  // Fetches the blocks that the assembly lacks. Blocks from a stream that broke are kept if their
  // slice turns out right.
  Status Full(const StreamId& stream, WeightVersion version, FullAssembly& assembly);
  // Like Full, but in one call, and for a version whose capture may be open: takes the blocks that
  // arrive. Errors: CANCELLED, and what is wrong with these blocks.
  Status FullEarly(const StreamId& stream, WeightVersion version, FullAssembly& assembly);
  struct FullPart {
    TrainerRank rank;
    uint64_t bytes_max = 0;  // more is not asked for
    Duration timeout = {};
  };
  // Asks another receiver once, for a part of what the assembly lacks; takes what it has of that.
  // Errors: also that it does not have exactly this version (ABORTED).
  Status FullFromPeer(const StreamId& stream, WeightVersion version, const FullPart& part,
                      FullAssembly& assembly);
  // See PeersRequest.
  struct PeerQuestion {
    std::span<const std::string> avoid = {};
    std::span<const std::string> without = {};
    bool begun = false;
    uint64_t other_ranks_bytes = 0;
    bool failed = false;
    bool only_others = false;
  };
  struct PeerAnswer {
    std::string address;
    Duration wait = {};
  };
  // Where to read full tensors of the version from: see PeersReply. Asks once. Errors as
  // Describe's, and UNIMPLEMENTED: this sender names no receivers; UNAVAILABLE: not yet;
  // OUT_OF_RANGE: a newer version is to be read.
  Result<PeerAnswer> AskForPeer(const StreamId& stream, WeightVersion version,
                                const PeerQuestion& question);
  // Like HostSnapshot::Open. If the call was cancelled, perhaps with its stream, this and the next
  // three return UNAVAILABLE: the transfer is not given up.
  Result<MappedSnapshot> MapSnapshot(const StreamId& stream, const RankLayout& layout,
                                     HostSnapshot& host);
  // Like LentCopies::Open and Ask.
  Result<LentCopies> OpenGpuCopies(const CopiesWant& want, const AllowedUsers& users,
                                   const Clock& clock);
  Status AskGpuCopies(const CopiesWant& want);
  // Asks the sender to lend its snapshot over a fabric. FAILED_PRECONDITION: it lends nothing,
  // which stays so. Other errors are the call's.
  Result<RemoteLoan> OpenFabric(const StreamId& stream);

 private:
  // The request for a whole object, or for its part with `slices`.
  v1::FetchRequest ObjectRequest(const StreamId& stream, WeightVersion base, WeightVersion version,
                                 DeltaProfile profile, const SliceSelection& slices) const;
  // Asks for the blocks that `assembly` lacks: at most so many bytes, but one block at least.
  // Returns their number of bytes.
  uint64_t AddMissing(const FullAssembly& assembly, uint64_t bytes_max,
                      v1::FetchFullRequest& request) const;
  v1::FetchFullRequest FullRequest(const StreamId& stream, WeightVersion version) const;
  FullCallEnd CallFull(const StreamId& stream, WeightVersion version, bool early,
                       FullAssembly& assembly);

  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::SyncService::Stub> stub_;
  ActiveCalls& calls_;
  const Digest layout_;
  const PeerCheck check_peer_;
  const std::string receiver_id_;
};

}  // namespace dws
