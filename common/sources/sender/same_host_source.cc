// While a version is captured, its blocks are read as the stamps say that they are there.
#include "common/sources/sender/same_host_source.h"

#include <algorithm>
#include <chrono>

#include "common/sources/same_host/snapshot_reader.h"

namespace dws {
namespace {

// How often the stamps are read: each time after twice as long, if there was nothing new.
constexpr Duration kPollMin = std::chrono::milliseconds(1);
constexpr Duration kPollMax = std::chrono::milliseconds(64);

}  // namespace

Result<MappedSnapshot> SameHostSource::Map(const Piece& piece, const RankLayout& layout) {
  SenderLink& link = links_.sender(piece);
  return link.fetcher(piece.target, piece.rank)
      .MapSnapshot(piece.target.stream, layout, link.snapshot());
}

Status SameHostSource::ReadFull(const Piece& piece, FullAssembly& assembly) {
  DWS_ASSIGN_OR_RETURN(const MappedSnapshot snapshot, Map(piece, assembly.layout()));
  return ReadSnapshot(*snapshot, piece.target.version, assembly, pool_);
}

Status SameHostSource::ReadFullCapture(const Piece& piece, FullAssembly& assembly) {
  DWS_ASSIGN_OR_RETURN(const MappedSnapshot snapshot, Map(piece, assembly.layout()));
  Duration wait = kPollMin;
  while (assembly.early()->stage() == EarlyVersion::Stage::kCapturing) {
    const uint64_t missing = assembly.missing_blocks();
    if (missing == 0) break;
    DWS_RETURN_IF_ERROR(ReadSnapshot(*snapshot, piece.target.version, assembly, pool_, true));
    wait = assembly.missing_blocks() < missing ? kPollMin : std::min(2 * wait, kPollMax);
    if (!cancellation_.Sleep(wait)) return CancelledError("the receiver is shutting down");
  }
  return OkStatus();
}

}  // namespace dws
