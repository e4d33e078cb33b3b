#include "common/memory/segment_map.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/check.h"

namespace dws {
namespace {

// Smaller contiguous pieces are cheaper as scattered elements: each separate piece has a header.
constexpr uint64_t kPieceBytesMin = 64;

// Calls piece(offset_bytes, first_byte, size_bytes) for the contiguous pieces of elements [first,
// first + count): `offset_bytes` from the segment's start, `first_byte` in slice order from
// `first`.
template <typename Piece>
void ForEachPiece(const StridedRuns& runs, uint64_t element_bytes, uint64_t first, uint64_t count,
                  Piece piece) {
  if (count == 0) return;
  uint64_t run = first / runs.run_elements;
  uint64_t in_run = first % runs.run_elements;
  uint64_t done = 0;
  while (done < count) {
    const uint64_t elements = std::min(count - done, runs.run_elements - in_run);
    piece((run * runs.stride_elements + in_run) * element_bytes, done * element_bytes,
          elements * element_bytes);
    done += elements;
    in_run = 0;
    ++run;
  }
}

// Collects one block's scattered elements for StagedWrites. Offsets are counted from the first
// element, and from a later one again where 32 bits do not suffice.
class BlockStager {
 public:
  BlockStager(std::byte* base, uint32_t element_bytes, size_t elements_max, StagedWrites& staged)
      : base_(base), element_bytes_(element_bytes), staged_(staged) {
    offsets_.reserve(elements_max);
    values_.reserve(elements_max * element_bytes);
  }
  ~BlockStager() { Flush(); }

  // `offset_bytes` is counted from `base` and must not descend from call to call.
  void Add(uint64_t offset_bytes, const std::byte* value) {
    if (offset_bytes - origin_ > std::numeric_limits<uint32_t>::max()) Flush();
    if (offsets_.empty()) origin_ = offset_bytes;
    offsets_.push_back(static_cast<uint32_t>(offset_bytes - origin_));
    values_.insert(values_.end(), value, value + element_bytes_);
  }

 private:
  void Flush() {
    staged_.Append(base_ + origin_, element_bytes_, offsets_, values_);
    offsets_.clear();
    values_.clear();
  }

  std::byte* const base_;
  const uint32_t element_bytes_;
  StagedWrites& staged_;
  uint64_t origin_ = 0;
  std::vector<uint32_t> offsets_;
  std::vector<std::byte> values_;
};

}  // namespace

Status CheckRuns(uint64_t region_bytes, uint64_t offset_bytes, const StridedRuns& runs,
                 uint32_t element_bytes) {
  if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4 && element_bytes != 8) {
    return InvalidArgumentError("expected elements of 1, 2, 4 or 8 bytes, found {}", element_bytes);
  }
  if (offset_bytes > region_bytes) {
    return InvalidArgumentError("offset {} lies beyond the region of {} bytes", offset_bytes,
                                region_bytes);
  }
  if (runs.run_count == 0 || runs.run_elements == 0) return OkStatus();
  if (runs.run_count > 1 && runs.stride_elements < runs.run_elements) {
    return InvalidArgumentError(
        "{} runs of {} elements overlap at a stride of {}: elements that share memory cannot be "
        "mapped",
        runs.run_count, runs.run_elements, runs.stride_elements);
  }
  const auto extent =
      static_cast<unsigned __int128>(runs.run_count - 1) * runs.stride_elements + runs.run_elements;
  if (extent > (region_bytes - offset_bytes) / element_bytes) {
    return InvalidArgumentError(
        "{} runs of {} elements, {} apart, of {} bytes each, from offset {} on, reach beyond the "
        "region of {} bytes",
        runs.run_count, runs.run_elements, runs.stride_elements, element_bytes, offset_bytes,
        region_bytes);
  }
  return OkStatus();
}

Result<ConstSegmentMap> ConstSegmentMap::Create(ByteSpan region, uint64_t offset_bytes,
                                                const StridedRuns& runs, uint32_t element_bytes) {
  DWS_RETURN_IF_ERROR(CheckRuns(region.size(), offset_bytes, runs, element_bytes));
  ConstSegmentMap map;
  map.base_ = region.data() + offset_bytes;
  map.runs_ = runs;
  map.element_bytes_ = element_bytes;
  return map;
}

uint64_t ConstSegmentMap::OffsetBytes(uint64_t element) const {
  DWS_CHECK(element < element_count());
  return (element / runs_.run_elements * runs_.stride_elements + element % runs_.run_elements) *
         element_bytes_;
}

void ConstSegmentMap::Gather(uint64_t first, MutableByteSpan out) const {
  const uint64_t count = out.size() / element_bytes_;
  DWS_CHECK(count * element_bytes_ == out.size());
  DWS_CHECK(first <= element_count() && count <= element_count() - first);
  ForEachPiece(runs_, element_bytes_, first, count,
               [&](uint64_t offset_bytes, uint64_t first_byte, uint64_t size_bytes) {
                 std::memcpy(out.data() + first_byte, base_ + offset_bytes, size_bytes);
               });
}

ByteSpan ConstSegmentMap::Contiguous(uint64_t first, uint64_t count) const {
  DWS_CHECK(first <= element_count() && count <= element_count() - first);
  if (count == 0 || first % runs_.run_elements + count > runs_.run_elements) return {};
  return {Address(first), count * element_bytes_};
}

uint64_t ConstSegmentMap::PieceCount(uint64_t first, uint64_t count) const {
  DWS_CHECK(count > 0 && first < element_count() && count <= element_count() - first);
  return (first + count - 1) / runs_.run_elements - first / runs_.run_elements + 1;
}

bool ConstSegmentMap::WordOffsets(uint64_t first, uint64_t count,
                                  std::span<const uint16_t> positions, uint32_t* offsets) const {
  if (positions.empty()) return true;
  DWS_CHECK(first < element_count() && count <= element_count() - first);
  DWS_CHECK(positions.back() < count);
  const uint64_t word_elements = 8 / element_bytes_;
  if (positions.back() / word_elements >= count / word_elements) return false;  // in the short tail
  const uint64_t in_run = first % runs_.run_elements;
  if (in_run + count <= runs_.run_elements) {
    for (size_t i = 0; i < positions.size(); ++i) offsets[i] = positions[i] * element_bytes_;
    return true;
  }
  if (runs_.run_elements % word_elements != 0 || first % word_elements != 0) return false;
  const uint64_t skipped = runs_.stride_elements - runs_.run_elements;  // between two runs
  if (OffsetBytes(first + positions.back()) - OffsetBytes(first) >
      std::numeric_limits<uint32_t>::max()) {
    return false;
  }
  // Positions are below 2^16. For runs shorter than that, x / run is exactly x * inverse / 2^34 for
  // x below 2^17, where inverse = 2^34 / run + 1, all divisions rounded down. A block crosses the
  // end of a longer run at most once.
  constexpr uint64_t kShortRun = uint64_t{1} << 16;
  constexpr uint32_t kShift = 34;
  if (runs_.run_elements >= kShortRun) {
    const uint64_t crossing = runs_.run_elements - in_run;
    for (size_t i = 0; i < positions.size(); ++i) {
      const uint64_t gap = positions[i] >= crossing ? skipped : 0;
      offsets[i] = static_cast<uint32_t>((positions[i] + gap) * element_bytes_);
    }
    return true;
  }
  const uint64_t inverse = (uint64_t{1} << kShift) / runs_.run_elements + 1;
  for (size_t i = 0; i < positions.size(); ++i) {
    const uint64_t run = (in_run + positions[i]) * inverse >> kShift;
    offsets[i] = static_cast<uint32_t>((positions[i] + run * skipped) * element_bytes_);
  }
  return true;
}

Result<SegmentMap> SegmentMap::Create(MutableByteSpan region, uint64_t offset_bytes,
                                      const StridedRuns& runs, uint32_t element_bytes) {
  SegmentMap map;
  DWS_ASSIGN_OR_RETURN(map.source_,
                       ConstSegmentMap::Create(region, offset_bytes, runs, element_bytes));
  map.base_ = region.data() + offset_bytes;
  return map;
}

MutableByteSpan SegmentMap::Contiguous(uint64_t first, uint64_t count) const {
  const ByteSpan bytes = source_.Contiguous(first, count);
  if (bytes.empty()) return {};
  return {base_ + (bytes.data() - source_.base_), bytes.size()};
}

void SegmentMap::Write(uint64_t first, ByteSpan bytes) const {
  const uint64_t count = bytes.size() / element_bytes();
  DWS_CHECK(count * element_bytes() == bytes.size());
  DWS_CHECK(first <= element_count() && count <= element_count() - first);
  ForEachPiece(source_.runs_, element_bytes(), first, count,
               [&](uint64_t offset_bytes, uint64_t first_byte, uint64_t size_bytes) {
                 std::memcpy(base_ + offset_bytes, bytes.data() + first_byte, size_bytes);
               });
}

void SegmentMap::StageElements(uint64_t first, std::span<const uint16_t> positions,
                               ByteSpan new_block, StagedWrites& staged) const {
  if (positions.empty()) return;
  const StridedRuns& runs = source_.runs_;
  const uint64_t width = element_bytes();
  DWS_CHECK(first + positions.back() < element_count());
  DWS_CHECK((positions.back() + uint64_t{1}) * width <= new_block.size());

  // The run of the current position. Positions ascend, so it is found by advancing, without a
  // division for each position.
  const uint64_t first_element = first + positions.front();
  uint64_t run_begin = first_element / runs.run_elements * runs.run_elements;
  uint64_t run_offset = first_element / runs.run_elements * runs.stride_elements;
  BlockStager stager(base_, element_bytes(), positions.size(), staged);
  for (const uint16_t position : positions) {
    const uint64_t element = first + position;
    while (element - run_begin >= runs.run_elements) {
      run_begin += runs.run_elements;
      run_offset += runs.stride_elements;
    }
    stager.Add((run_offset + element - run_begin) * width, new_block.data() + position * width);
  }
}

void SegmentMap::StageAll(uint64_t first, ByteSpan new_block, StagedWrites& staged) const {
  const StridedRuns& runs = source_.runs_;
  const uint64_t width = element_bytes();
  const uint64_t count = new_block.size() / width;
  DWS_CHECK(count * width == new_block.size());
  DWS_CHECK(first <= element_count() && count <= element_count() - first);

  if (runs.run_elements * width >= kPieceBytesMin || runs.run_count == 1) {
    ForEachPiece(runs, width, first, count,
                 [&](uint64_t offset_bytes, uint64_t first_byte, uint64_t size_bytes) {
                   staged.AppendCopy(base_ + offset_bytes,
                                     new_block.subspan(first_byte, size_bytes));
                 });
    return;
  }
  BlockStager stager(base_, element_bytes(), count, staged);
  ForEachPiece(runs, width, first, count,
               [&](uint64_t offset_bytes, uint64_t first_byte, uint64_t size_bytes) {
                 for (uint64_t at = 0; at < size_bytes; at += width) {
                   stager.Add(offset_bytes + at, new_block.data() + first_byte + at);
                 }
               });
}

}  // namespace dws
