// Take removes the object from the member's cache, so a version that is given up is fetched the
// next time.
#include "receiver_daemon/transfer/sources/broadcast_source.h"

#include "receiver_daemon/transfer/grpc/sync_link.h"

namespace dws {

Result<DeltaRead> BroadcastSource::ReadDelta(const Piece& piece, const DeltaWant& want,
                                             const Spool::Options& spool) {
  BroadcastMember* const member = links_.link(piece).broadcasts();
  if (member == nullptr) return DeltaRead::Without("this sender's are not joined");
  const auto bytes = member->Take(
      {.stream = piece.target.stream, .base = want.base, .version = piece.target.version},
      spool.wanted);
  if (!bytes.has_value()) {
    if (spool.wanted && !spool.wanted()) return CancelledError("given up");
    return DeltaRead::Without("did not arrive");
  }
  DWS_ASSIGN_OR_RETURN(Spool object, SpoolOf(*bytes, spool));
  return DeltaRead::Object(std::move(object));
}

}  // namespace dws
