// Once blocks were kept for a reader, it reads only those, so later captures need not keep anything
// for it again.
#include "sender_daemon/capture/full/open_reads.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/memory/available_memory.h"

namespace dws {
namespace {

constexpr uint64_t kNotWanted = ~uint64_t{0};
constexpr uint64_t kAlignment = 64;
// Kept blocks take at most one part in so many of the memory that the host has left.
constexpr uint64_t kMemoryShare = 2;

}  // namespace

KeptBlocks::KeptBlocks(const RankLayout& layout, WeightVersion version,
                       const std::vector<uint8_t>& wanted,
                       std::shared_ptr<std::atomic<uint64_t>> held)
    : version_(version),
      offsets_(wanted.size(), kNotWanted),
      kept_(wanted.size()),
      held_(std::move(held)) {
  DWS_CHECK(wanted.size() == layout.block_count());
  uint64_t room = 0;
  for (const BlockRange& slice : WholeSlices(layout)) {
    for (uint32_t block = 0; block < slice.block_count; ++block) {
      const uint64_t number = layout.slice(slice.slice).first_block + block;
      if (wanted[number] == 0) continue;
      const uint64_t size = SizeBytes(layout, {slice.slice, block, 1});
      offsets_[number] = room;
      size_bytes_ += size;
      room += CeilDiv(size, kAlignment) * kAlignment;
    }
  }
  held_->fetch_add(size_bytes_);
  memory_ = AllocateOwnPages(std::max<uint64_t>(room, 1));
}

KeptBlocks::~KeptBlocks() { held_->fetch_sub(size_bytes_); }

bool KeptBlocks::Wants(uint64_t number) const {
  return offsets_[number] != kNotWanted && kept_[number] == 0;
}

void KeptBlocks::Keep(uint64_t number, ByteSpan bytes) {
  DWS_CHECK(!closed());
  if (!Wants(number)) return;
  std::memcpy(memory_.get() + offsets_[number], bytes.data(), bytes.size());
  kept_[number] = 1;
}

ByteSpan KeptBlocks::Block(uint64_t number, size_t size_bytes) const {
  DWS_CHECK(closed() && number < kept_.size() && kept_[number] != 0);
  return {memory_.get() + offsets_[number], size_bytes};
}

OpenReads::Read::Read(OpenReads& reads, WeightVersion version,
                      const std::vector<BlockRange>& ranges)
    : reads_(reads) {
  MutexLock lock(reads_.mutex_);
  entry_ = reads_.entries_.insert(reads_.entries_.end(), {.version = version, .ranges = ranges});
  const auto& spare = reads_.spare_;
  if (spare != nullptr && version == spare->version()) entry_->kept = spare;
}

OpenReads::Read::~Read() {
  std::shared_ptr<KeptBlocks> last;  // freed without the lock
  MutexLock lock(reads_.mutex_);
  last = std::move(entry_->kept);
  reads_.entries_.erase(entry_);
  const auto shares = [&](const Entry& entry) { return entry.kept == last; };
  // Every reader that needed it has read it.
  if (last != nullptr && last == reads_.spare_ && std::ranges::none_of(reads_.entries_, shares)) {
    reads_.spare_.reset();
  }
}

void OpenReads::Read::Passed(size_t range, uint32_t offset) {
  MutexLock lock(reads_.mutex_);
  entry_->next_range = range;
  entry_->next_offset = offset;
}

std::shared_ptr<const KeptBlocks> OpenReads::Read::kept() const {
  MutexLock lock(reads_.mutex_);
  return entry_->kept;
}

void OpenReads::Refused() {
  MutexLock lock(mutex_);
  keep_all_ = kKeepAllVersions;
  keep_all_until_ = std::chrono::steady_clock::now() + keep_all_time_;
}

void OpenReads::DropSpare() {
  std::shared_ptr<KeptBlocks> dropped;
  MutexLock lock(mutex_);
  dropped = std::move(spare_);
}

uint64_t OpenReads::MarkLeft(const Entry& entry, std::vector<uint8_t>& wanted) const {
  uint64_t added = 0;
  for (size_t i = entry.next_range; i < entry.ranges.size(); ++i) {
    const BlockRange& range = entry.ranges[i];
    const RankLayout::SliceEntry& slice = layout_.slice(range.slice);
    for (uint32_t b = i == entry.next_range ? entry.next_offset : 0; b < range.block_count; ++b) {
      const uint32_t block = range.first_block + b;
      if (std::exchange(wanted[slice.first_block + block], uint8_t{1}) == 0) {
        added += SizeBytes(layout_, {range.slice, block, 1});
      }
    }
  }
  return added;
}

std::shared_ptr<KeptBlocks> OpenReads::BeginOverwrite(WeightVersion version) {
  DropSpare();
  MutexLock lock(mutex_);
  const uint64_t held = held_->load();
  // Keeping blocks is less important than the other work on this host.
  uint64_t room =
      std::min(bytes_max_ - std::min(bytes_max_, held), AvailableMemoryBytes() / kMemoryShare);
  std::vector<uint8_t> wanted(layout_.block_count());
  std::vector<Entry*> covered;
  const bool keep_all = keep_all_ > 0 || std::chrono::steady_clock::now() < keep_all_until_;
  const bool whole = keep_all && layout_.size_bytes() <= room;
  if (keep_all_ > 0) --keep_all_;
  if (whole) std::ranges::fill(wanted, uint8_t{1});
  for (Entry& entry : entries_) {
    // A newer version is that of the capture that begins now: its reader reads early.
    if (entry.kept != nullptr || entry.version > version) continue;
    std::vector<uint8_t> with_it = wanted;
    const uint64_t added = MarkLeft(entry, with_it);
    if (added > room) continue;
    room -= added;
    wanted = std::move(with_it);
    covered.push_back(&entry);
  }
  if (!whole && covered.empty()) return nullptr;
  auto kept = std::make_shared<KeptBlocks>(layout_, version, wanted, held_);
  for (Entry* const entry : covered) entry->kept = kept;
  if (whole) spare_ = kept;
  return kept;
}

}  // namespace dws
