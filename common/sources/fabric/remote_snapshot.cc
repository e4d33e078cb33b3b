// Pieces are read side by side, each in three steps; a step begins when the one before has arrived:
//
//   1. the stamps of its blocks: what is changing is left out, and what has changed since the
//      wanted version if there is no room to keep it;
//   2. the blocks, from the first to the last that is left;
//   3. the stamps again: what has changed meanwhile is left out. Read after the bytes had arrived,
//      they prove that the bytes did not change before that.
//
// Stamps are read over a value that no stamp has, so a read that moved nothing is seen. The digests
// of whole slices prove later that the bytes were moved, too.
#include "common/sources/fabric/remote_snapshot.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;
constexpr uint64_t kUnread = ~uint64_t{0};
// Except for the last block of a slice, a block has at least limits::kBlockElements bytes, so a
// piece has at most so many blocks.
constexpr size_t kPieceBlocksMax = kPieceBytes / limits::kBlockElements;

std::vector<BlockRange> Pieces(const FullAssembly& assembly) {
  std::vector<BlockRange> pieces;
  for (const BlockRange& range : assembly.Missing()) {
    const uint32_t blocks_max = BlocksIn(kPieceBytes, assembly.layout().slice(range.slice).dtype);
    for (uint32_t i = 0; i < range.block_count; i += blocks_max) {
      pieces.push_back({.slice = range.slice,
                        .first_block = range.first_block + i,
                        .block_count = std::min(blocks_max, range.block_count - i)});
    }
  }
  return pieces;
}

// One transfer. Threads: one.
class RemoteRead {
 public:
  RemoteRead(RemoteMemory& remote, const SnapshotPlaces& places, WeightVersion version,
             RemoteBuffers& buffers, FullAssembly& assembly)
      : remote_(remote),
        places_(places),
        version_(version),
        buffers_(buffers),
        assembly_(assembly),
        pieces_(Pieces(assembly)),
        slots_(remote.pieces_max()) {}

  Status Run(const std::function<Status()>& going_on) {
    size_t under_way = 0;
    for (; under_way < slots_.size() && next_ < pieces_.size(); ++under_way) {
      DWS_RETURN_IF_ERROR(Begin(under_way));
    }
    while (under_way > 0) {
      DWS_RETURN_IF_ERROR(going_on());
      DWS_ASSIGN_OR_RETURN(const uint64_t tag, remote_.Wait());
      DWS_CHECK(tag < slots_.size());
      DWS_KILLPOINT("receiver.full.inside_snapshot");
      DWS_ASSIGN_OR_RETURN(const bool done, Arrived(tag));
      if (!done) continue;
      if (next_ < pieces_.size()) {
        DWS_RETURN_IF_ERROR(Begin(tag));
      } else {
        --under_way;
      }
    }
    return OkStatus();
  }

 private:
  enum class Step : uint8_t { kStampsBefore, kBytes, kStampsAfter };
  struct Slot {
    Step step = Step::kStampsBefore;
    BlockRange range;  // without what is left out at its ends
    MutableByteSpan bytes;
    // The stamps of `range` before the bytes were read; none: the block is left out.
    std::vector<std::optional<uint64_t>> stamps;
  };

  Status Begin(size_t slot) {
    slots_[slot].range = pieces_[next_++];
    slots_[slot].stamps.clear();
    return ReadStamps(slot, Step::kStampsBefore);
  }

  Status ReadStamps(size_t slot, Step step) {
    slots_[slot].step = step;
    const BlockRange& range = slots_[slot].range;
    const std::span<uint64_t> stamps = buffers_.stamps(slot).first(range.block_count);
    std::fill(stamps.begin(), stamps.end(), kUnread);
    const uint64_t block = assembly_.layout().slice(range.slice).first_block + range.first_block;
    return remote_.Start({.offset = places_.stamp_offset(block),
                          .to = {reinterpret_cast<std::byte*>(stamps.data()), stamps.size_bytes()},
                          .tag = slot});
  }

  // Takes the stamps; false if no block is left.
  Result<bool> TakeStamps(size_t slot) {
    Slot& piece = slots_[slot];
    const bool before = piece.step == Step::kStampsBefore;
    if (before) piece.stamps.resize(piece.range.block_count);
    bool any = false;
    for (uint32_t i = 0; i < piece.range.block_count; ++i) {
      const uint64_t stamp = buffers_.stamps(slot)[i];
      if (stamp == kUnread) {
        return DataLossError("fabric {} says that it has read, and has moved nothing",
                             remote_.name());
      }
      std::optional<uint64_t>& kept = piece.stamps[i];
      if (before) {
        const bool there = IsAt(stamp, version_) ||
                           (ChangedBy(stamp).has_value() && assembly_.has_room_for_newer());
        if (there) kept = stamp;
      } else if (kept != stamp && !IsAt(stamp, version_)) {
        kept.reset();
      }
      any = any || kept.has_value();
    }
    return any;
  }

  // Begins the next step of a piece; true: the piece is done.
  Result<bool> Arrived(size_t slot) {
    switch (slots_[slot].step) {
      case Step::kStampsBefore: {
        DWS_ASSIGN_OR_RETURN(const bool any, TakeStamps(slot));
        if (!any) return true;
        DWS_RETURN_IF_ERROR(ReadBytes(slot));
        return false;
      }
      case Step::kBytes:
        DWS_RETURN_IF_ERROR(ReadStamps(slot, Step::kStampsAfter));
        return false;
      case Step::kStampsAfter: {
        DWS_ASSIGN_OR_RETURN(const bool any, TakeStamps(slot));
        if (any) DWS_RETURN_IF_ERROR(TakeBytes(slot));
        return true;
      }
    }
    return InternalError("a piece in no step");
  }

  Status ReadBytes(size_t slot) {
    Slot& piece = slots_[slot];
    const auto first =
        static_cast<uint32_t>(std::find_if(piece.stamps.begin(), piece.stamps.end(),
                                           [](const auto& stamp) { return stamp.has_value(); }) -
                              piece.stamps.begin());
    piece.range.first_block += first;
    piece.stamps.erase(piece.stamps.begin(), piece.stamps.begin() + first);
    while (!piece.stamps.back().has_value()) piece.stamps.pop_back();
    piece.range.block_count = static_cast<uint32_t>(piece.stamps.size());
    piece.bytes = buffers_.Room(assembly_, piece.range, slot);
    piece.step = Step::kBytes;
    return remote_.Start({.offset = places_.slice_offset(piece.range.slice) +
                                    FirstByte(assembly_.layout(), piece.range),
                          .to = piece.bytes,
                          .tag = slot});
  }

  Status TakeBytes(size_t slot) {
    const Slot& piece = slots_[slot];
    const uint64_t block_bytes = BlockBytes(assembly_.layout().slice(piece.range.slice).dtype);
    for (uint32_t i = 0; i < piece.range.block_count; ++i) {
      if (!piece.stamps[i].has_value()) continue;
      const uint64_t offset = i * block_bytes;
      const BlockRange block{
          .slice = piece.range.slice, .first_block = piece.range.first_block + i, .block_count = 1};
      const ByteSpan bytes =
          piece.bytes.subspan(offset, std::min(block_bytes, piece.bytes.size() - offset));
      if (IsAt(*piece.stamps[i], version_)) {
        DWS_RETURN_IF_ERROR(assembly_.Take(block, bytes));
      } else if (assembly_.has_room_for_newer()) {
        assembly_.KeepNewer({.at = *ChangedBy(*piece.stamps[i]),
                             .block = block,
                             .bytes = {bytes.begin(), bytes.end()}});
      }
    }
    return OkStatus();
  }

  RemoteMemory& remote_;
  const SnapshotPlaces& places_;
  const WeightVersion version_;
  RemoteBuffers& buffers_;
  FullAssembly& assembly_;
  const std::vector<BlockRange> pieces_;
  size_t next_ = 0;  // of pieces_
  std::vector<Slot> slots_;
};

}  // namespace

RemoteBuffers::RemoteBuffers(FullAssembly& assembly, size_t pieces_max)
    : memory_(assembly.memory()), stamps_(pieces_max * kPieceBlocksMax) {
  if (memory_.empty()) bytes_.resize(pieces_max * kPieceBytes);
}

std::vector<MutableByteSpan> RemoteBuffers::Local() {
  return {memory_.empty() ? MutableByteSpan(bytes_) : memory_,
          {reinterpret_cast<std::byte*>(stamps_.data()), stamps_.size() * sizeof(uint64_t)}};
}

std::span<uint64_t> RemoteBuffers::stamps(size_t piece) {
  return std::span(stamps_).subspan(piece * kPieceBlocksMax, kPieceBlocksMax);
}

MutableByteSpan RemoteBuffers::Room(FullAssembly& assembly, const BlockRange& range, size_t piece) {
  if (!memory_.empty()) {
    std::vector<std::byte> unused;
    return assembly.Room(range, unused);
  }
  return MutableByteSpan(bytes_).subspan(piece * kPieceBytes, SizeBytes(assembly.layout(), range));
}

Status ReadRemoteSnapshot(RemoteMemory& remote, const SnapshotPlaces& places, WeightVersion version,
                          const std::function<Status()>& going_on, RemoteBuffers& buffers,
                          FullAssembly& assembly) {
  return RemoteRead(remote, places, version, buffers, assembly).Run(going_on);
}

}  // namespace dws
