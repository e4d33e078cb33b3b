#include "common/sources/memory_reader.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/delta/decoder.h"
#include "common/delta/objects/delta_link.h"
#include "common/model/limits.h"
#include "common/spool/fetched_object.h"
#include "common/sync_state/receiver_plan.h"

namespace dws {
namespace {

// How often memory is read again without progress: blocks that are changing at the moment have
// changed soon.
constexpr int kIdleReadsMax = 3;
constexpr Duration kIdleTime = std::chrono::milliseconds(2);
// Blocks may be of a version that is captured and not published yet. How long to wait for it, since
// the last delta came: if another source may be asked, and if none may.
constexpr Duration kPublishWait = std::chrono::seconds(1);
constexpr Duration kPublishWaitRequired = std::chrono::seconds(10);
constexpr Duration kPublishPollMin = std::chrono::milliseconds(1);
constexpr Duration kPublishPollMax = std::chrono::milliseconds(64);
// Where another source may be asked, a read whose deltas bring less than so many times their own
// size is the last one.
constexpr uint64_t kGainMin = 4;

// Reads frames of an object in a spool. Both must outlive it.
DeltaLink LinkTo(const FetchedObject& object, const Spool& spool) {
  // A part has its frames in other places than the object, in the same order.
  const auto frame = [&object, &spool](const FrameEntry& entry,
                                       std::vector<std::byte>& buffer) -> Result<ByteSpan> {
    const auto found =
        std::ranges::lower_bound(object.frames, entry.offset, {},
                                 [](const SpooledFrame& spooled) { return spooled.entry.offset; });
    DWS_CHECK(found != object.frames.end() && found->entry.offset == entry.offset);
    return spool.Read(found->spool_offset, entry.size_bytes, buffer);
  };
  return {.manifest = &object.manifest, .frame = frame};
}

// Another delta would not come either.
bool IsBroken(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsFailedPrecondition(status);
}

std::vector<RankSlice> SlicesOf(std::span<const NewerBlock> blocks) {
  std::vector<RankSlice> slices;
  for (const NewerBlock& newer : blocks) {
    if (slices.empty() || slices.back() != newer.block.slice) slices.push_back(newer.block.slice);
  }
  return slices;
}

}  // namespace

Duration MemoryReader::PublishWait() const {
  return options_.required ? kPublishWaitRequired : kPublishWait;
}

Result<Spool> MemoryReader::Delta(const Piece& newer, const DeltaWant& want,
                                  const FullAssembly& assembly) {
  auto read = options_.deltas->ReadDelta(newer, want, options_.spool);
  for (Duration wait = kPublishPollMin;
       absl::IsAborted(read.status()) && publish_wait_ > Duration::zero();
       wait = std::min(2 * wait, kPublishPollMax)) {
    if (!assembly.wanted() || !options_.sleep(wait)) return CancelledError("given up");
    publish_wait_ -= wait;
    read = options_.deltas->ReadDelta(newer, want, options_.spool);
  }
  DWS_RETURN_IF_ERROR(read.status());
  if (!read->object.has_value()) return AbortedError("{}: {}", options_.deltas->name(), read->why);
  return *std::move(read->object);
}

Status MemoryReader::TurnBack(std::span<NewerBlock> blocks, FullAssembly& assembly) {
  if (options_.deltas == nullptr) return FailedPreconditionError("no source composes deltas");
  const RankLayout& layout = assembly.layout();
  SyncTarget newer = options_.piece.target;
  newer.version = blocks.front().at;
  const WeightVersion wanted = options_.piece.target.version;
  const SliceSelection slices = SlicesOf(blocks);
  const DeltaWant want{.base = wanted, .slices = slices, .undo = true};
  DWS_ASSIGN_OR_RETURN(const Spool object,
                       Delta({.target = newer, .rank = options_.piece.rank}, want, assembly));
  delta_bytes_ += object.size_bytes();
  DWS_ASSIGN_OR_RETURN(const FetchedObject parsed, ParseObject(object, layout, slices));
  DWS_RETURN_IF_ERROR(CheckManifest(parsed.manifest, newer.at(), options_.piece.rank, wanted));
  LinkReader delta(LinkTo(parsed, object));
  DecodedBlock decoded;
  for (NewerBlock& block : blocks) {
    const RankSlice slice = block.block.slice;
    DWS_ASSIGN_OR_RETURN(const EncodedBlockView view, delta.Find(slice, block.block.first_block));
    const Status reverted = RevertBlock(layout.slice(slice).dtype, view, block.bytes, decoded);
    if (!reverted.ok()) return Annotate(reverted, layout.tensor(slice).name);
    DWS_RETURN_IF_ERROR(assembly.Take(block.block, block.bytes));
  }
  publish_wait_ = PublishWait();
  return OkStatus();
}

Status MemoryReader::TurnBackAll(FullAssembly& assembly) {
  std::vector<NewerBlock> newer = assembly.TakeNewer();
  std::ranges::sort(newer, {}, [](const NewerBlock& block) {
    return std::tuple(block.at, block.block.slice, block.block.first_block);
  });
  Status first = OkStatus();
  size_t versions = 0;
  for (auto begin = newer.begin(); begin != newer.end() && !IsBroken(first);) {
    if (++versions > limits::kRetainedVersionsMax) {
      return DataLossError("stamps of more than {} versions after {}, which no sender retains",
                           limits::kRetainedVersionsMax, options_.piece.target.version.value());
    }
    const auto end = std::find_if(begin, newer.end(),
                                  [&](const NewerBlock& block) { return block.at != begin->at; });
    const Status turned = TurnBack({begin, end}, assembly);
    if (absl::IsCancelled(turned) || !assembly.failed().ok()) return turned;
    first.Update(turned);
    begin = end;
  }
  return first;
}

Status MemoryReader::Read(FullAssembly& assembly) {
  publish_wait_ = PublishWait();
  bool again = false;
  for (int idle = 0; idle < kIdleReadsMax;) {
    const uint64_t missing = MissingBytes(assembly);
    const uint64_t fetched = delta_bytes_;
    const Status read = options_.memory.ReadFull(options_.piece, assembly);
    turned_ = TurnBackAll(assembly);
    DWS_RETURN_IF_ERROR(read);
    if (absl::IsCancelled(turned_) || !assembly.failed().ok()) return turned_;
    const uint64_t gained = missing - std::min(missing, MissingBytes(assembly));
    if (assembly.missing_blocks() == 0) {
      // If a version was given up and its number published again, a stamp may name the other one:
      // such blocks are read once more.
      if (delta_bytes_ == 0 || std::exchange(again, true)) break;
      if (assembly.DropWrong().empty()) break;
    } else if (gained > 0) {
      idle = 0;
      if (!options_.required && (delta_bytes_ - fetched) * kGainMin > gained) break;
    } else if (!turned_.ok()) {
      break;
    } else if (++idle < kIdleReadsMax && !options_.sleep(kIdleTime)) {
      return CancelledError("the receiver is shutting down");
    }
  }
  return OkStatus();
}

}  // namespace dws
