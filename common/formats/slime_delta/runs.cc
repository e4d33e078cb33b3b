#include "common/formats/slime_delta/runs.h"

#include <cstring>
#include <optional>

#include "common/base/failpoint.h"

namespace dws::slime {
namespace {

// The next position from `at` where `before` and `after` differ; their size when there is none.
size_t NextDifference(ByteSpan before, ByteSpan after, size_t at) {
  while (at + 8 <= after.size() &&
         LoadLe<uint64_t>(before.data() + at) == LoadLe<uint64_t>(after.data() + at)) {
    at += 8;
  }
  while (at < after.size() && before[at] == after[at]) ++at;
  return at;
}

void AppendNumber(uint64_t number, std::vector<std::byte>& to) {
  for (; number >= 0x80; number >>= 7) to.push_back(std::byte((number & 0x7F) | 0x80));
  to.push_back(std::byte(number));
}

// nullopt: cut off, or more than 63 bits.
std::optional<uint64_t> TakeNumber(ByteSpan& rest) {
  uint64_t number = 0;
  for (uint32_t shift = 0; shift < 63 && !rest.empty(); shift += 7) {
    const auto byte = std::to_integer<uint64_t>(rest.front());
    rest = rest.subspan(1);
    number |= (byte & 0x7F) << shift;
    if (byte < 0x80) return number;
  }
  return std::nullopt;
}

// DATA_LOSS: cut off, or a run outside the tensor.
Status CheckRuns(ByteSpan payload, uint64_t tensor_bytes) {
  uint64_t end = 0;
  while (!payload.empty()) {
    const std::optional<uint64_t> gap = TakeNumber(payload);
    const std::optional<uint64_t> size = gap.has_value() ? TakeNumber(payload) : std::nullopt;
    if (!size.has_value() || *size == 0 || *size > payload.size()) {
      return DataLossError("a run after byte {} of a tensor is cut off", end);
    }
    if (*gap > tensor_bytes - end || *size > tensor_bytes - end - *gap) {
      return DataLossError("a run of {} bytes, {} after byte {} of a tensor of {}", *size, *gap,
                           end, tensor_bytes);
    }
    end += *gap + *size;
    payload = payload.subspan(*size);
  }
  return OkStatus();
}

}  // namespace

std::vector<ByteRun> ChangedRuns(ByteSpan before, ByteSpan after, uint64_t join_bytes) {
  std::vector<ByteRun> runs;
  for (size_t at = NextDifference(before, after, 0); at < after.size();
       at = NextDifference(before, after, at)) {
    const size_t begin = at;
    while (at < after.size() && before[at] != after[at]) ++at;
    if (!runs.empty() && begin - (runs.back().offset + runs.back().size_bytes) <= join_bytes) {
      runs.back().size_bytes = at - runs.back().offset;
    } else {
      runs.push_back({.offset = begin, .size_bytes = at - begin});
    }
  }
  return runs;
}

std::vector<std::byte> EncodeRuns(ByteSpan after, std::span<const ByteRun> runs) {
  std::vector<std::byte> payload;
  uint64_t end = 0;
  for (const ByteRun& run : runs) {
    AppendNumber(run.offset - end, payload);
    AppendNumber(run.size_bytes, payload);
    const ByteSpan bytes = after.subspan(run.offset, run.size_bytes);
    payload.insert(payload.end(), bytes.begin(), bytes.end());
    end = run.offset + run.size_bytes;
  }
  return payload;
}

Status ApplyRuns(ByteSpan payload, MutableByteSpan tensor) {
  DWS_RETURN_IF_ERROR(CheckRuns(payload, tensor.size()));
  for (uint64_t end = 0; !payload.empty();) {
    const uint64_t offset = end + *TakeNumber(payload);
    const uint64_t size = *TakeNumber(payload);
    std::memcpy(tensor.data() + offset, payload.data(), size);
    payload = payload.subspan(size);
    end = offset + size;
    DWS_KILLPOINT("slime.apply.inside_tensor");
  }
  return OkStatus();
}

}  // namespace dws::slime
