#include "common/memory/cuda/staging_run.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <utility>

namespace dws::cuda {
namespace {

// A piece reads and writes at most so many bytes on the device: about 500 microseconds on an A100.
constexpr uint64_t kTouchedBytesMax = uint64_t{256} << 20;
// Few enough that the device begins early, while later pieces are written.
constexpr size_t kPieceBlocksMax = 16'384;
constexpr uint64_t kSectorBytes = 32;
// The arena's buffers double in size from the first to the second of these, or have the size that
// the measured items need, up to the third: allocating a buffer takes longer than filling it.
constexpr uint64_t kArenaBytesMin = uint64_t{64} << 10;
constexpr uint64_t kArenaBytesMax = uint64_t{64} << 20;
constexpr uint64_t kArenaBytesAtOnce = uint64_t{256} << 20;
// Number of items that a worker measures or writes in one turn, and number of items that are
// measured at once.
constexpr size_t kItemsPerTurn = 256;
constexpr size_t kMeasuredMax = 65'536;

// The memory of a kept block in the lists, here and on the device.
constexpr uint64_t kListedBytes = 2 * sizeof(CommitBlock) + sizeof(uint32_t);

constexpr uint8_t kClassSplit = 3;
constexpr uint8_t kDenseUlp = 4;

bool IsDense(uint8_t mode) { return mode >= kDenseUlp; }

uint64_t RoomOf(const StageBlock& block) {
  return StagedBytes(block.mode, block.nnz, block.elements, block.element.bytes);
}

// An estimate of the bytes of device memory that staging a block reads and writes.
uint64_t TouchedBytes(const StageItem& item) {
  const StageBlock& block = item.block;
  const uint64_t whole = uint64_t{block.elements} * block.element.bytes;
  const uint64_t sectors = std::min(whole, uint64_t{block.nnz} * kSectorBytes);
  const uint64_t live = block.mode == kClassSplit || IsDense(block.mode) ? whole : sectors;
  return item.payload.size() + live + RoomOf(block);
}

// The bytes that an item takes of a lane besides its payload.
constexpr uint64_t kListedInLane =
    sizeof(StageBlock) + sizeof(CommitBlock) + sizeof(KernelClassTable);

// Calls f(begin, end) for all turns of `count` items, in parallel.
template <typename F>
void InTurns(ThreadPool& pool, size_t count, F f) {
  pool.ParallelFor(CeilDiv(count, kItemsPerTurn), [&](size_t turn, size_t) {
    f(turn * kItemsPerTurn, std::min(count, (turn + 1) * kItemsPerTurn));
  });
}

CommitBlock CommitOf(const StageBlock& block) {
  const bool dense = IsDense(block.mode);
  return {.staged = block.staged,
          .first_element = block.first_element,
          .entries = dense ? block.elements : block.nnz,
          .place = block.place,
          .element_bytes = block.element.bytes,
          .dense = static_cast<uint8_t>(dense ? 1 : 0)};
}

}  // namespace

uint64_t StagedBlocks::size_bytes() const {
  uint64_t bytes = list_.size_bytes() + blocks_.capacity() * sizeof(CommitBlock) +
                   groups_.capacity() * sizeof(uint32_t);
  for (const CudaBuffer& buffer : arena_) bytes += buffer.size_bytes();
  return bytes;
}

Status StagedBlocks::Seal(DeviceWeights& weights, std::span<const uint8_t> kept) {
  std::vector<CommitBlock> list;
  list.reserve(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (kept[groups_[i]] != 0) list.push_back(blocks_[i]);
  }
  blocks_ = {};
  groups_ = {};
  if (list.empty()) {
    arena_.clear();
    return OkStatus();
  }
  const ByteSpan bytes = std::as_bytes(std::span(list));
  DWS_ASSIGN_OR_RETURN(list_, weights.device().Allocate(bytes.size()));
  DWS_ASSIGN_OR_RETURN(WorkLane* const lane, weights.NextLane());
  DWS_RETURN_IF_ERROR(lane->stream().CopyToDevice(list_.address(), bytes));
  DWS_RETURN_IF_ERROR(lane->stream().Synchronize());
  count_ = static_cast<uint32_t>(list.size());
  return OkStatus();
}

Status StagingRun::Start() {
  DWS_ASSIGN_OR_RETURN(results_,
                       weights_.Results(result_count_ * (sizeof(KernelDigest) + sizeof(uint32_t))));
  return OkStatus();
}

size_t StagingRun::PieceOf(std::span<const ItemSizes> sizes) const {
  uint64_t lane = 0;
  uint64_t touched = 0;
  uint64_t staged = 0;
  size_t count = 0;
  for (; count < std::min(sizes.size(), kPieceBlocksMax); ++count) {
    lane += sizes[count].payload + kListedInLane;
    touched += sizes[count].touched;
    staged += sizes[count].staged;
    const bool fits = lane + WorkLane::kSlackBytes <= WorkLane::kBytesMax &&
                      touched <= kTouchedBytesMax && staged <= WorkLane::kScratchBytes;
    if (count > 0 && !fits) break;
  }
  return count;
}

Result<uint64_t> StagingRun::Room(WorkLane& lane, uint64_t size_bytes) {
  if (mode_ != Mode::kKeep) return lane.scratch();
  std::vector<CudaBuffer>& arena = staged_.arena_;
  if (arena.empty() || arena.back().size_bytes() - arena_used_ < size_bytes) {
    const uint64_t usual = arena.empty() ? kArenaBytesMin : arena.back().size_bytes() * 2;
    uint64_t wanted = std::max({size_bytes, std::min(usual, kArenaBytesMax),
                                std::min(staged_bytes_left_, kArenaBytesAtOnce)});
    DWS_ASSIGN_OR_RETURN(const uint64_t free, weights_.device().FreeBytes());
    bool taken = free >= size_bytes && free - size_bytes >= kStagingSpareBytes;
    if (taken) wanted = std::min(wanted, free - kStagingSpareBytes);
    if (taken && !budget_->Take(wanted)) {
      wanted = size_bytes;
      taken = budget_->Take(wanted);
    }
    if (!taken) {
      DWS_RETURN_IF_ERROR(GiveUpKeeping());
      return lane.scratch();
    }
    Result<CudaBuffer> buffer = weights_.device().Allocate(wanted);
    if (!buffer.ok() && wanted > size_bytes) buffer = weights_.device().Allocate(size_bytes);
    if (absl::IsResourceExhausted(buffer.status())) {  // the engine has taken the memory meanwhile
      DWS_RETURN_IF_ERROR(GiveUpKeeping());
      return lane.scratch();
    }
    DWS_RETURN_IF_ERROR(buffer.status());
    arena.push_back(*std::move(buffer));
    arena_used_ = 0;
  }
  const uint64_t address = arena.back().address() + arena_used_;
  arena_used_ += size_bytes;
  return address;
}

Status StagingRun::GiveUpKeeping() {
  mode_ = Mode::kPredict;
  budget_->Pass();
  // Work that still runs uses the memory that is freed next.
  DWS_RETURN_IF_ERROR(weights_.Synchronize());
  staged_ = {};
  return OkStatus();
}

// Assigns every turn of items its places in the lane and in the arena.
StagingRun::Piece StagingRun::Lay(std::span<const ItemSizes> sizes, WorkLane& lane,
                                  uint64_t staged) {
  const size_t count = sizes.size();
  Piece piece{.blocks = lane.Put(count * sizeof(StageBlock)),
              .commits = lane.Put(mode_ == Mode::kApply ? count * sizeof(CommitBlock) : 0),
              .tables = lane.Put(count * sizeof(KernelClassTable)),
              .payloads = {},
              .turns = {},
              .class_split = 0,
              .first_kept = staged_.blocks_.size()};
  piece.turns.reserve(CeilDiv(count, kItemsPerTurn));
  LaidItem next{.payload = 0, .staged = staged};
  for (size_t i = 0; i < count; ++i) {
    if (i % kItemsPerTurn == 0) piece.turns.push_back(next);
    next.payload += sizes[i].payload;
    next.staged += sizes[i].staged;
  }
  piece.payloads = lane.Put(next.payload);
  if (mode_ == Mode::kKeep) {
    staged_.blocks_.resize(piece.first_kept + count);
    staged_.groups_.resize(piece.first_kept + count);
  }
  return piece;
}

// Writes the data of one item to its places.
void StagingRun::Write(const StageItem& item, size_t number, const LaidItem& laid,
                       const Piece& piece) {
  StageBlock block = item.block;
  block.payload = piece.payloads.address + laid.payload;
  block.payload_bytes = static_cast<uint32_t>(item.payload.size());
  block.staged = laid.staged;
  block.table = static_cast<uint32_t>(number);
  std::memcpy(piece.blocks.host.data() + number * sizeof(block), &block, sizeof(block));
  if (item.table != nullptr) {
    std::memcpy(piece.tables.host.data() + number * sizeof(KernelClassTable), item.table,
                sizeof(KernelClassTable));
  }
  std::copy(item.payload.begin(), item.payload.end(),
            piece.payloads.host.subspan(laid.payload).begin());
  const CommitBlock commit = CommitOf(block);
  if (mode_ == Mode::kApply) {
    std::memcpy(piece.commits.host.data() + number * sizeof(commit), &commit, sizeof(commit));
  } else if (mode_ == Mode::kKeep) {
    staged_.blocks_[piece.first_kept + number] = commit;
    staged_.groups_[piece.first_kept + number] = item.group;
  }
}

Status StagingRun::Launch(const WorkLane& lane, const Piece& piece, uint32_t count) {
  const StageArgs stage{.blocks = piece.blocks.address,
                        .payloads = 0,
                        .places = weights_.places(),
                        .tables = piece.tables.address,
                        .arena = 0,
                        .differences = *results_,
                        .failures = *results_ + result_count_ * sizeof(KernelDigest),
                        .commits = mode_ == Mode::kApply ? piece.commits.address : 0,
                        .block_count = count};
  if (piece.class_split < count) {
    DWS_RETURN_IF_ERROR(lane.stream().Launch(Kernel::kStage, stage, count));
  }
  if (piece.class_split > 0) {
    DWS_RETURN_IF_ERROR(lane.stream().Launch(Kernel::kStageSplit, stage, count));
  }
  if (mode_ != Mode::kApply) return weights_.Rest(lane);
  const CommitArgs commit{.blocks = piece.commits.address,
                          .places = weights_.places(),
                          .arena = 0,
                          .block_count = count};
  return lane.stream().Launch(Kernel::kCommit, commit, count);
}

Status StagingRun::AddPiece(std::span<const StageItem> items, std::span<const ItemSizes> sizes,
                            ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(WorkLane* const lane, weights_.NextLane());
  // The budget may have been exceeded while other memory of this engine was staged.
  if (mode_ == Mode::kKeep && (budget_->passed() || !budget_->Take(items.size() * kListedBytes))) {
    DWS_RETURN_IF_ERROR(GiveUpKeeping());
  }
  uint64_t staged_bytes = 0;
  for (const ItemSizes& item : sizes) staged_bytes += item.staged;
  DWS_ASSIGN_OR_RETURN(const uint64_t staged, Room(*lane, staged_bytes));
  staged_bytes_left_ -= staged_bytes;
  const auto began = std::chrono::steady_clock::now();
  Piece piece = Lay(sizes, *lane, staged);
  std::atomic<uint32_t> class_split{0};
  InTurns(pool, items.size(), [&](size_t begin, size_t end) {
    LaidItem laid = piece.turns[begin / kItemsPerTurn];
    uint32_t split = 0;
    for (size_t i = begin; i < end; ++i) {
      split += items[i].block.mode == kClassSplit ? 1 : 0;
      Write(items[i], i, laid, piece);
      laid.payload += sizes[i].payload;
      laid.staged += sizes[i].staged;
    }
    class_split += split;
  });
  piece.class_split = class_split;
  DWS_RETURN_IF_ERROR(lane->Send());
  weights_.AddUploadTime(std::chrono::steady_clock::now() - began);
  return Launch(*lane, piece, static_cast<uint32_t>(items.size()));
}

// The caller's thread alone would take longer to look at the items than the device to stage them.
void StagingRun::Measure(std::span<const StageItem> items, ThreadPool& pool) {
  sizes_.resize(items.size());
  std::atomic<uint64_t> staged_bytes{0};
  InTurns(pool, items.size(), [&](size_t begin, size_t end) {
    uint64_t staged = 0;
    for (size_t i = begin; i < end; ++i) {
      sizes_[i] = {.payload = static_cast<uint32_t>(WorkLane::Padded(items[i].payload.size())),
                   .touched = static_cast<uint32_t>(TouchedBytes(items[i])),
                   .staged = static_cast<uint32_t>(RoomOf(items[i].block))};
      staged += sizes_[i].staged;
    }
    staged_bytes += staged;
  });
  staged_bytes_left_ = staged_bytes;
}

Status StagingRun::Add(std::span<const StageItem> items, ThreadPool& pool) {
  if (!results_.has_value()) DWS_RETURN_IF_ERROR(Start());
  if (const size_t all = staged_.blocks_.size() + items.size();
      mode_ == Mode::kKeep && all > staged_.blocks_.capacity()) {
    const size_t room = std::max(all, staged_.blocks_.capacity() * 2);
    staged_.blocks_.reserve(room);
    staged_.groups_.reserve(room);
  }
  while (!items.empty()) {
    Measure(items.first(std::min(items.size(), kMeasuredMax)), pool);
    for (std::span<const ItemSizes> left = sizes_; !left.empty();) {
      const size_t count = PieceOf(left);
      DWS_RETURN_IF_ERROR(AddPiece(items.first(count), left.first(count), pool));
      items = items.subspan(count);
      left = left.subspan(count);
    }
  }
  return OkStatus();
}

Result<StagingRun::Outcome> StagingRun::Finish() {
  Outcome outcome{.differences = std::vector<KernelDigest>(result_count_),
                  .failures = std::vector<uint32_t>(result_count_),
                  .staged = {}};
  if (!results_.has_value()) return outcome;
  DWS_RETURN_IF_ERROR(weights_.Synchronize());
  DWS_ASSIGN_OR_RETURN(WorkLane* const lane, weights_.NextLane());
  const CudaStream& stream = lane->stream();
  const auto differences = std::as_writable_bytes(std::span(outcome.differences));
  DWS_RETURN_IF_ERROR(stream.CopyToHost(differences, *results_));
  DWS_RETURN_IF_ERROR(stream.CopyToHost(std::as_writable_bytes(std::span(outcome.failures)),
                                        *results_ + differences.size()));
  DWS_RETURN_IF_ERROR(stream.Synchronize());
  outcome.staged = std::move(staged_);
  return outcome;
}

}  // namespace dws::cuda
