#include "common/memory/segment_map.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "common/base/check.h"

namespace dws {
namespace {

// Below this a contiguous piece is cheaper as scattered elements: a piece of its own has a header.
constexpr uint64_t kPieceBytesMin = 64;

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

// One block's scattered elements on their way to StagedWrites. Offsets are counted from the first
// element and start anew where 32 bits do not reach.
class BlockStager {
 public:
  BlockStager(std::byte* base, uint32_t element_bytes, size_t elements_max, StagedWrites& staged)
      : base_(base), element_bytes_(element_bytes), staged_(staged) {
    offsets_.reserve(elements_max);
    values_.reserve(elements_max * element_bytes);
  }
  ~BlockStager() { Flush(); }

  // `offset_bytes` from `base`, not descending.
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

Result<SegmentMap> SegmentMap::Create(MutableByteSpan region, uint64_t offset_bytes,
                                      const StridedRuns& runs, uint32_t element_bytes) {
  SegmentMap map;
  DWS_ASSIGN_OR_RETURN(map.source_,
                       ConstSegmentMap::Create(region, offset_bytes, runs, element_bytes));
  map.base_ = region.data() + offset_bytes;
  return map;
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

  // The run of the position at hand: positions ascend, so it is found by moving on, without a
  // division for each.
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
