// What comes over the connection tells how fast it is, and so which encoding to ask for next.
#include "common/sources/sender/grpc_source.h"

namespace dws {

Result<DeltaRead> GrpcSource::ReadDelta(const Piece& piece, const DeltaWant& want,
                                        const Spool::Options& spool) {
  SenderLink& link = links_.sender(piece);
  const SyncTarget& target = piece.target;
  const TimePoint began = clock_.Now();
  // The fast profile has steps only.
  const DeltaProfile profile = want.undo ? DeltaProfile::kFast : link.speed().Choose(profile_);
  DWS_ASSIGN_OR_RETURN(Spool object, link.fetcher(target, piece.rank)
                                         .Object(target.stream, want.base, target.version, profile,
                                                 want.slices, want.skip_bytes, spool));
  // Composing a delta takes the sender's time, not the link's.
  if (!want.undo) link.speed().Add(object.size_bytes() - want.skip_bytes, clock_.Now() - began);
  return DeltaRead::Object(std::move(object));
}

Status GrpcSource::ReadFull(const Piece& piece, FullAssembly& assembly) {
  SenderLink& link = links_.sender(piece);
  const uint64_t bytes = MissingBytes(assembly);
  const TimePoint began = clock_.Now();
  DWS_RETURN_IF_ERROR(link.fetcher(piece.target, piece.rank)
                          .Full(piece.target.stream, piece.target.version, assembly));
  link.speed().Add(bytes, clock_.Now() - began);
  return OkStatus();
}

bool GrpcSource::reads_captures(Content content, const Piece& piece) const {
  return content == Content::kFull || links_.sender(piece).early_deltas();
}

Result<std::vector<std::byte>> GrpcSource::ReadDeltaCapture(const Piece& piece,
                                                            const DeltaWant& want,
                                                            const Spool::Options& spool,
                                                            const FrameTaker& take) {
  SenderLink& link = links_.sender(piece);
  return link.fetcher(piece.target, piece.rank)
      .ObjectEarly(piece.target, piece.rank, want, link.speed().Choose(profile_), spool,
                   link.speed(), take);
}

Status GrpcSource::ReadFullCapture(const Piece& piece, FullAssembly& assembly) {
  return links_.sender(piece)
      .fetcher(piece.target, piece.rank)
      .FullEarly(piece.target.stream, piece.target.version, assembly);
}

}  // namespace dws
