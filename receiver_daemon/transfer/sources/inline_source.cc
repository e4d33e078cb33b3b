// The object stays with the link: a version that is given up and taken again finds it there.
#include "receiver_daemon/transfer/sources/inline_source.h"

#include "receiver_daemon/transfer/grpc/sync_link.h"

namespace dws {

Result<DeltaRead> InlineSource::ReadDelta(const Piece& piece, const DeltaWant& want,
                                          const Spool::Options& spool) {
  const auto here = links_.link(piece).Inline(piece.target.stream, want.base, piece.target.version);
  if (here == nullptr) return DeltaRead::Without("not in its announcement");
  DWS_ASSIGN_OR_RETURN(Spool object, SpoolOf(AsBytes(here->bytes), spool));
  return DeltaRead::Object(std::move(object));
}

}  // namespace dws
