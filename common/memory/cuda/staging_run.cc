#include "common/memory/cuda/staging_run.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace dws::cuda {
namespace {

// The most that a piece reads and writes on the device: about 500 microseconds on an A100.
constexpr uint64_t kTouchedBytesMax = uint64_t{256} << 20;
constexpr size_t kPieceBlocksMax = 32'768;
constexpr uint64_t kSectorBytes = 32;
// The arena's buffers double in size from the first to the second of these, or are as large as a
// piece needs.
constexpr uint64_t kArenaBytesMin = uint64_t{64} << 10;
constexpr uint64_t kArenaBytesMax = uint64_t{64} << 20;
// Must stay free on the device beside what is staged: its engine may need more memory.
constexpr uint64_t kSpareBytes = uint64_t{512} << 20;
// Items that a worker writes in one turn.
constexpr size_t kItemsPerTurn = 256;

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

uint64_t LaneBytes(const StageItem& item) {
  return WorkLane::Padded(item.payload.size()) + sizeof(StageBlock) + sizeof(CommitBlock) +
         sizeof(KernelClassTable);
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

size_t StagingRun::PieceOf(std::span<const StageItem> items) const {
  uint64_t lane = 0;
  uint64_t touched = 0;
  uint64_t staged = 0;
  size_t count = 0;
  for (; count < std::min(items.size(), kPieceBlocksMax); ++count) {
    lane += LaneBytes(items[count]);
    touched += TouchedBytes(items[count]);
    staged += RoomOf(items[count].block);
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
    uint64_t wanted = std::max(size_bytes, std::min(usual, kArenaBytesMax));
    DWS_ASSIGN_OR_RETURN(const uint64_t free, weights_.device().FreeBytes());
    bool taken = free >= size_bytes && free - size_bytes >= kSpareBytes;
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

// Assigns every item its place in the lane and in the arena.
StagingRun::Piece StagingRun::Lay(std::span<const StageItem> items, WorkLane& lane,
                                  uint64_t staged) {
  Piece piece{.blocks = lane.Put(items.size() * sizeof(StageBlock)),
              .commits = lane.Put(mode_ == Mode::kApply ? items.size() * sizeof(CommitBlock) : 0),
              .tables = lane.Put(items.size() * sizeof(KernelClassTable)),
              .items = {}};
  piece.items.reserve(items.size());
  for (const StageItem& item : items) {
    piece.items.push_back({.payload = lane.Put(item.payload.size()), .staged = staged});
    staged += RoomOf(item.block);
  }
  if (mode_ == Mode::kKeep) {
    staged_.blocks_.resize(staged_.blocks_.size() + items.size());
    staged_.groups_.resize(staged_.blocks_.size());
  }
  return piece;
}

// Writes the data of one item to its places.
void StagingRun::Write(const StageItem& item, size_t number, const Piece& piece) {
  const LaidItem& laid = piece.items[number];
  StageBlock block = item.block;
  block.payload = laid.payload.address;
  block.payload_bytes = static_cast<uint32_t>(item.payload.size());
  block.staged = laid.staged;
  block.table = static_cast<uint32_t>(number);
  std::memcpy(piece.blocks.host.data() + number * sizeof(block), &block, sizeof(block));
  if (item.table != nullptr) {
    std::memcpy(piece.tables.host.data() + number * sizeof(KernelClassTable), item.table,
                sizeof(KernelClassTable));
  }
  std::copy(item.payload.begin(), item.payload.end(), laid.payload.host.begin());
  const CommitBlock commit = CommitOf(block);
  if (mode_ == Mode::kApply) {
    std::memcpy(piece.commits.host.data() + number * sizeof(commit), &commit, sizeof(commit));
  } else if (mode_ == Mode::kKeep) {
    const size_t at = staged_.blocks_.size() - piece.items.size() + number;
    staged_.blocks_[at] = commit;
    staged_.groups_[at] = item.group;
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
  DWS_RETURN_IF_ERROR(lane.stream().Launch(Kernel::kStage, stage, count));
  if (mode_ != Mode::kApply) return weights_.Rest(lane);
  const CommitArgs commit{.blocks = piece.commits.address,
                          .places = weights_.places(),
                          .arena = 0,
                          .block_count = count};
  return lane.stream().Launch(Kernel::kCommit, commit, count);
}

Status StagingRun::AddPiece(std::span<const StageItem> items, ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(WorkLane* const lane, weights_.NextLane());
  // The budget may have been exceeded while other memory of this engine was staged.
  if (mode_ == Mode::kKeep && (budget_->passed() || !budget_->Take(items.size() * kListedBytes))) {
    DWS_RETURN_IF_ERROR(GiveUpKeeping());
  }
  uint64_t staged_bytes = 0;
  for (const StageItem& item : items) staged_bytes += RoomOf(item.block);
  DWS_ASSIGN_OR_RETURN(const uint64_t staged, Room(*lane, staged_bytes));
  const auto began = std::chrono::steady_clock::now();
  const Piece piece = Lay(items, *lane, staged);
  pool.ParallelFor(CeilDiv(items.size(), kItemsPerTurn), [&](size_t turn, size_t) {
    const size_t end = std::min(items.size(), (turn + 1) * kItemsPerTurn);
    for (size_t i = turn * kItemsPerTurn; i < end; ++i) Write(items[i], i, piece);
  });
  DWS_RETURN_IF_ERROR(lane->Send());
  weights_.AddUploadTime(std::chrono::steady_clock::now() - began);
  return Launch(*lane, piece, static_cast<uint32_t>(items.size()));
}

Status StagingRun::Add(std::span<const StageItem> items, ThreadPool& pool) {
  if (!results_.has_value()) DWS_RETURN_IF_ERROR(Start());
  while (!items.empty()) {
    const size_t count = PieceOf(items);
    DWS_RETURN_IF_ERROR(AddPiece(items.first(count), pool));
    items = items.subspan(count);
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
