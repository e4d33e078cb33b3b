// Each word is loaded by an atomic load: from ordinary ones the compiler could load again what was
// checked already.
#include "common/memory/gradients/outbox_layout.h"

#include <array>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/model/digest/digest.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr char kMagic[9] = "DWSOUTBX";
constexpr uint32_t kFormatVersion = 1;
constexpr uint64_t kHeaderBytes = 64;
constexpr uint64_t kChecksumOffset = 24;  // of what is before it
constexpr uint64_t kDataAlignment = 4096;

using Line = std::array<uint64_t, 8>;

// 64 bytes that another process may be writing.
Line LoadOnce(const std::byte* from) {
  Line line;
  for (size_t i = 0; i < line.size(); ++i) {
    line[i] = __atomic_load_n(reinterpret_cast<const uint64_t*>(from) + i, __ATOMIC_RELAXED);
  }
  return line;
}

uint32_t Low(uint64_t word) { return static_cast<uint32_t>(word); }
uint32_t High(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
uint64_t Join(uint32_t low, uint32_t high) { return low | uint64_t{high} << 32; }

Line MakeHeader(const OutboxGeometry& geometry) {
  Line line = {};
  std::memcpy(line.data(), kMagic, 8);
  line[1] = Join(kFormatVersion, geometry.slot_count);
  line[2] = geometry.data_bytes;
  line[3] = DigestBytes(std::as_bytes(std::span(line)).first(kChecksumOffset), 0).lane0;
  return line;
}

}  // namespace

uint64_t OutboxGeometry::DataOffset() const {
  return CeilDiv(kHeaderBytes + slot_count * kOutboxSlotBytes, kDataAlignment) * kDataAlignment;
}

Status Validate(const OutboxGeometry& geometry) {
  if (geometry.slot_count == 0 || geometry.slot_count > kOutboxSlotsMax) {
    return InvalidArgumentError("outbox: expected 1 to {} slots, found {}", kOutboxSlotsMax,
                                geometry.slot_count);
  }
  const uint64_t data_bytes_max = limits::kRegionBytesMax - geometry.DataOffset();
  if (geometry.data_bytes == 0 || geometry.data_bytes > data_bytes_max) {
    return InvalidArgumentError("outbox: expected 1 to {} bytes of data, found {}", data_bytes_max,
                                geometry.data_bytes);
  }
  return OkStatus();
}

void WriteOutboxHeader(const OutboxGeometry& geometry, std::byte* header) {
  const Line line = MakeHeader(geometry);
  std::memcpy(header, line.data(), kHeaderBytes);
}

Result<OutboxMemory> OutboxMemory::Open(HostRegion region) {
  if (region.size_bytes() < kHeaderBytes) {
    return InvalidArgumentError("outbox: expected a header of {} bytes, found {} bytes",
                                kHeaderBytes, region.size_bytes());
  }
  const Line header = LoadOnce(region.bytes().data());
  const OutboxGeometry geometry = {.slot_count = High(header[1]), .data_bytes = header[2]};
  if (std::memcmp(header.data(), kMagic, 8) != 0 || Low(header[1]) != kFormatVersion) {
    return InvalidArgumentError("outbox: expected {} of version {}, found another header", kMagic,
                                kFormatVersion);
  }
  if (header != MakeHeader(geometry)) {
    return InvalidArgumentError("outbox: the checksum of its header is wrong");
  }
  DWS_RETURN_IF_ERROR(Validate(geometry));
  if (geometry.SizeBytes() != region.size_bytes()) {
    return InvalidArgumentError(
        "outbox of {} slots and {} bytes: expected a region of {}, found {}", geometry.slot_count,
        geometry.data_bytes, geometry.SizeBytes(), region.size_bytes());
  }
  OutboxMemory memory;
  memory.region_ = std::move(region);
  memory.geometry_ = geometry;
  return memory;
}

Result<ByteSpan> OutboxMemory::Bytes(uint64_t offset_bytes, uint64_t size_bytes) const {
  if (offset_bytes > geometry_.data_bytes || size_bytes > geometry_.data_bytes - offset_bytes) {
    return InvalidArgumentError("outbox: expected bytes of its {}, found {} at {}",
                                geometry_.data_bytes, size_bytes, offset_bytes);
  }
  return region_.bytes().subspan(geometry_.DataOffset() + offset_bytes, size_bytes);
}

const std::byte* OutboxMemory::Slot(uint32_t slot) const {
  DWS_CHECK(slot < geometry_.slot_count);
  return region_.bytes().data() + kHeaderBytes + slot * kOutboxSlotBytes;
}

std::byte* OutboxMemory::MutableSlot(uint32_t slot) const {
  DWS_CHECK(slot < geometry_.slot_count);
  return region_.mutable_bytes().data() + kHeaderBytes + slot * kOutboxSlotBytes;
}

uint32_t OutboxMemory::State(uint32_t slot) const {
  return __atomic_load_n(reinterpret_cast<const uint32_t*>(Slot(slot)), __ATOMIC_ACQUIRE);
}

void OutboxMemory::SetState(uint32_t slot, OutboxSlotState state) const {
  __atomic_store_n(reinterpret_cast<uint32_t*>(MutableSlot(slot)), static_cast<uint32_t>(state),
                   __ATOMIC_RELEASE);
}

Result<OutboxPiece> OutboxMemory::Read(uint32_t slot) const {
  const Line line = LoadOnce(Slot(slot));
  const std::optional<DType> dtype = DTypeFromNumber(High(line[1]));
  if (dtype != DType::kBF16 && dtype != DType::kF32) {
    return InvalidArgumentError("outbox slot {}: expected elements of BF16 or F32, found type {}",
                                slot, High(line[1]));
  }
  if (High(line[4]) != 0) {
    return InvalidArgumentError("outbox slot {}: expected zeros, found {:#x}", slot, High(line[4]));
  }
  const OutboxPiece piece = {.slot = slot,
                             .unit = High(line[0]),
                             .owner = Low(line[1]),
                             .dtype = *dtype,
                             .minibatch = line[2],
                             .term = line[7],
                             .attempt = Low(line[4]),
                             .number = line[3],
                             .offset_bytes = line[5],
                             .size_bytes = line[6]};
  const uint64_t width = ElementBytes(*dtype);
  if (piece.offset_bytes % width != 0 || piece.size_bytes % width != 0) {
    return InvalidArgumentError(
        "outbox slot {}: expected whole elements of {}, found {} bytes at {}", slot,
        ToString(*dtype), piece.size_bytes, piece.offset_bytes);
  }
  const Status inside = Bytes(piece.offset_bytes, piece.size_bytes).status();
  if (!inside.ok()) return Annotate(inside, fmt::format("slot {}", slot));
  return piece;
}

void OutboxMemory::Write(const OutboxPiece& piece) const {
  const Line line = {Join(0, piece.unit), Join(piece.owner, static_cast<uint32_t>(piece.dtype)),
                     piece.minibatch,     piece.number,
                     piece.attempt,       piece.offset_bytes,
                     piece.size_bytes,    piece.term};
  const ByteSpan fields = std::as_bytes(std::span(line)).subspan(sizeof(uint32_t));
  std::memcpy(MutableSlot(piece.slot) + sizeof(uint32_t), fields.data(), fields.size());
}

}  // namespace dws
