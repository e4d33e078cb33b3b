// A payload is checked as a whole before anything is changed. Writers list positions in ascending
// order; others are sorted first, keeping the order of changes of the same byte.
#include "common/formats/slime_delta/change_list.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/base/check.h"
#include "common/base/failpoint.h"

namespace dws::slime {
namespace {

constexpr uint64_t kShortRun = 4;  // bytes
// The changed lines of a window are usually not in the cache, so each change prefetches the lines
// of the changes that follow soon.
constexpr uint64_t kPrefetchBytes = 1024;

void PrefetchAfter(MutableByteSpan window, uint64_t at) {
  if (at + kPrefetchBytes < window.size()) {
    __builtin_prefetch(window.data() + at + kPrefetchBytes, /*rw=*/1);
  }
}

size_t NumberBytes(Encoding encoding) { return encoding == Encoding::kOverwrite ? 4 : 8; }

uint64_t LoadNumber(const std::byte* from, size_t number_bytes) {
  return number_bytes == 4 ? LoadLe<uint32_t>(from) : LoadLe<uint64_t>(from);
}

// Returns whether the positions ascend.
template <typename Number>
Result<bool> CheckPositions(const std::byte* positions, uint64_t count, uint64_t tensor_bytes) {
  bool ascending = true;
  uint64_t last = 0;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = LoadLe<Number>(positions + i * sizeof(Number));
    if (at >= tensor_bytes) {
      return DataLossError("change {} is at byte {} of a tensor of {} bytes", i, at, tensor_bytes);
    }
    ascending &= i == 0 || at > last;
    last = at;
  }
  return ascending;
}

Result<uint64_t> SparseCount(ByteSpan payload, size_t number_bytes, uint64_t tensor_bytes) {
  if (payload.size() < number_bytes) {
    return DataLossError("a payload of {} bytes has no count", payload.size());
  }
  const uint64_t count = LoadNumber(payload.data(), number_bytes);
  if (count > tensor_bytes) {
    return DataLossError("a payload of {} changes for a tensor of {} bytes", count, tensor_bytes);
  }
  const uint64_t expected = number_bytes + count * (number_bytes + 1);
  if (payload.size() == expected) return count;
  return DataLossError("a payload of {} bytes, expected {} for {} changes", payload.size(),
                       expected, count);
}

}  // namespace

ChangeList::ChangeList(Encoding encoding, std::vector<std::byte> payload)
    : encoding_(encoding), payload_(std::move(payload)), reader_(payload_) {}

Result<ChangeList> ChangeList::Make(Encoding encoding, std::vector<std::byte> payload,
                                    uint64_t tensor_bytes) {
  DWS_CHECK(encoding != Encoding::kXor);
  ChangeList list(encoding, std::move(payload));
  if (encoding == Encoding::kRuns) {
    DWS_RETURN_IF_ERROR(CheckRuns(list.payload_, tensor_bytes));
    return list;
  }
  list.number_bytes_ = NumberBytes(encoding);
  DWS_ASSIGN_OR_RETURN(list.count_, SparseCount(list.payload_, list.number_bytes_, tensor_bytes));
  list.positions_ = list.payload_.data() + list.number_bytes_;
  list.values_ = list.positions_ + list.number_bytes_ * list.count_;
  DWS_ASSIGN_OR_RETURN(const bool ascending,
                       list.number_bytes_ == 4
                           ? CheckPositions<uint32_t>(list.positions_, list.count_, tensor_bytes)
                           : CheckPositions<uint64_t>(list.positions_, list.count_, tensor_bytes));
  if (!ascending) list.Sort();
  return list;
}

uint64_t ChangeList::PositionAt(uint64_t index) const {
  return LoadNumber(positions_ + index * number_bytes_, number_bytes_);
}

void ChangeList::Sort() {
  std::vector<uint64_t> order(count_);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint64_t a, uint64_t b) { return PositionAt(a) < PositionAt(b); });
  std::vector<std::byte> sorted(payload_.size());
  std::memcpy(sorted.data(), payload_.data(), number_bytes_);
  std::byte* const positions = sorted.data() + number_bytes_;
  std::byte* const values = positions + number_bytes_ * count_;
  for (uint64_t i = 0; i < count_; ++i) {
    std::memcpy(positions + i * number_bytes_, positions_ + order[i] * number_bytes_,
                number_bytes_);
    values[i] = values_[order[i]];
  }
  payload_ = std::move(sorted);
  positions_ = positions;
  values_ = values;
}

void ChangeList::Apply(MutableByteSpan window, std::vector<ByteRun>* runs) {
  switch (encoding_) {
    case Encoding::kOverwrite:
      ApplySparse<uint32_t, false>(window, runs);
      break;
    case Encoding::kXorSparse:
      ApplySparse<uint64_t, true>(window, runs);
      break;
    case Encoding::kRuns:
      ApplyRuns(window, runs);
      break;
    case Encoding::kXor:
      DWS_CHECK(false);
  }
  window_begin_ += window.size();
}

void ChangeList::ApplyRuns(MutableByteSpan window, std::vector<ByteRun>* runs) {
  const uint64_t window_end = window_begin_ + window.size();
  while (true) {
    if (run_.bytes.empty()) {
      if (reader_.done()) return;
      run_ = reader_.Next();
    }
    if (run_.offset >= window_end) return;
    const uint64_t size = std::min<uint64_t>(run_.bytes.size(), window_end - run_.offset);
    const uint64_t at = run_.offset - window_begin_;
    PrefetchAfter(window, at);
    // Mostly one or two bytes, for which a call of memcpy costs more than the copy.
    if (size <= kShortRun) {
      for (uint64_t i = 0; i < size; ++i) window[at + i] = run_.bytes[i];
    } else {
      std::memcpy(window.data() + at, run_.bytes.data(), size);
    }
    if (runs != nullptr) runs->push_back({.offset = at, .size_bytes = size});
    run_ = {.offset = run_.offset + size, .bytes = run_.bytes.subspan(size)};
    DWS_KILLPOINT("slime.apply.inside_tensor");
  }
}

template <typename Number, bool exclusive_or>
void ChangeList::ApplySparse(MutableByteSpan window, std::vector<ByteRun>* runs) {
  const uint64_t window_end = window_begin_ + window.size();
  for (; next_ < count_; ++next_) {
    const uint64_t position = LoadLe<Number>(positions_ + next_ * sizeof(Number));
    if (position >= window_end) break;
    const uint64_t at = position - window_begin_;
    PrefetchAfter(window, at);
    window[at] = exclusive_or ? window[at] ^ values_[next_] : values_[next_];
    if (runs != nullptr) {
      AddChange(at, *runs);
    } else {
      DWS_KILLPOINT("slime.apply.inside_tensor");
    }
  }
}

}  // namespace dws::slime
