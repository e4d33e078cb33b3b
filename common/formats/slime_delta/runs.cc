#include "common/formats/slime_delta/runs.h"

#include <bit>
#include <cstring>
#include <limits>

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

constexpr size_t kNumberBytesMax = 10;

// Returns the end of the bytes it wrote.
std::byte* StoreNumber(uint64_t number, std::byte* to) {
  for (; number >= 0x80; number >>= 7) *to++ = std::byte((number & 0x7F) | 0x80);
  *to++ = std::byte(number);
  return to;
}

// Reads a number at `at` and returns its end; nullptr: cut off, or more than 63 bits.
inline const std::byte* LoadNumber(const std::byte* at, const std::byte* end, uint64_t& number) {
  if (at != end && *at < std::byte{0x80}) {  // nearly always
    number = std::to_integer<uint64_t>(*at);
    return at + 1;
  }
  number = 0;
  for (uint32_t shift = 0; shift < 63 && at != end; shift += 7) {
    const auto byte = std::to_integer<uint64_t>(*at++);
    number |= (byte & 0x7F) << shift;
    if (byte < 0x80) return at;
  }
  return nullptr;
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

bool Xor(ByteSpan a, ByteSpan b, MutableByteSpan to) {
  uint64_t any = 0;
  size_t at = 0;
  for (; at + 32 <= to.size(); at += 32) {
    for (size_t i = at; i < at + 32; i += 8) {
      const uint64_t word = LoadLe<uint64_t>(a.data() + i) ^ LoadLe<uint64_t>(b.data() + i);
      StoreLe(to.data() + i, word);
      any |= word;
    }
  }
  for (; at < to.size(); ++at) {
    to[at] = a[at] ^ b[at];
    any |= std::to_integer<uint64_t>(to[at]);
  }
  return any != 0;
}

void XorWindow(ByteSpan before, MutableByteSpan difference, std::vector<ByteRun>& runs) {
  constexpr size_t kLineBytes = 64;
  size_t line = 0;
  for (; line + kLineBytes <= difference.size(); line += kLineBytes) {
    uint64_t any = 0;
    for (size_t i = 0; i < kLineBytes; i += 8) {
      any |= LoadLe<uint64_t>(difference.data() + line + i);
    }
    if (any == 0) continue;
    for (size_t at = line; at < line + kLineBytes; at += 8) {
      uint64_t changed = LoadLe<uint64_t>(difference.data() + at);
      while (changed != 0) {
        const int byte = std::countr_zero(changed) / 8;
        AddChange(at + static_cast<size_t>(byte), runs);
        changed &= ~(uint64_t{0xFF} << (8 * byte));
      }
    }
  }
  for (size_t at = line; at < difference.size(); ++at) {
    if (difference[at] != std::byte{0}) AddChange(at, runs);
  }
  Xor(difference, before, difference);
}

void OverwriteWriter::Add(uint64_t offset, ByteSpan bytes) {
  const size_t used = positions_.size();
  positions_.resize(used + sizeof(uint32_t) * bytes.size());
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    StoreLe(positions_.data() + used + sizeof(uint32_t) * i, static_cast<uint32_t>(offset + i));
  }
  values_.insert(values_.end(), bytes.begin(), bytes.end());
}

Result<std::vector<std::byte>> OverwriteWriter::Take() {
  if (values_.size() > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgumentError("overwrite cannot carry {} changed bytes: use xor", values_.size());
  }
  std::vector<std::byte> payload(sizeof(uint32_t));
  StoreLe(payload.data(), static_cast<uint32_t>(values_.size()));
  payload.reserve(payload.size() + positions_.size() + values_.size());
  payload.insert(payload.end(), positions_.begin(), positions_.end());
  payload.insert(payload.end(), values_.begin(), values_.end());
  return payload;
}

void RunsWriter::Add(uint64_t offset, ByteSpan bytes) {
  const size_t needed = used_ + 2 * kNumberBytesMax + bytes.size();
  if (payload_.size() < needed) payload_.resize(needed + needed / 2);
  std::byte* at = StoreNumber(offset - end_, payload_.data() + used_);
  at = StoreNumber(bytes.size(), at);
  std::memcpy(at, bytes.data(), bytes.size());
  used_ = static_cast<size_t>(at - payload_.data()) + bytes.size();
  end_ = offset + bytes.size();
}

std::vector<std::byte> RunsWriter::Take() {
  payload_.resize(used_);
  return std::move(payload_);
}

std::vector<std::byte> EncodeRuns(ByteSpan after, std::span<const ByteRun> runs) {
  RunsWriter writer;
  for (const ByteRun& run : runs) {
    writer.Add(run.offset, after.subspan(run.offset, run.size_bytes));
  }
  return writer.Take();
}

RunsReader::Run RunsReader::Next() {
  Run run;
  uint64_t gap = 0;
  uint64_t size = 0;
  at_ = LoadNumber(at_, payload_end_, gap);
  at_ = LoadNumber(at_, payload_end_, size);
  run.offset = run_end_ + gap;
  run.bytes = ByteSpan(at_, size);
  at_ += size;
  run_end_ = run.offset + size;
  return run;
}

Status CheckRuns(ByteSpan payload, uint64_t tensor_bytes) {
  const std::byte* at = payload.data();
  const std::byte* const payload_end = at + payload.size();
  uint64_t end = 0;  // of the last run
  while (at != payload_end) {
    uint64_t gap = 0;
    uint64_t size = 0;
    at = LoadNumber(at, payload_end, gap);
    if (at != nullptr) at = LoadNumber(at, payload_end, size);
    if (at == nullptr || size == 0 || size > static_cast<uint64_t>(payload_end - at)) {
      return DataLossError("a run after byte {} of a tensor is cut off", end);
    }
    if (gap > tensor_bytes - end || size > tensor_bytes - end - gap) {
      return DataLossError("a run of {} bytes, {} after byte {} of a tensor of {}", size, gap, end,
                           tensor_bytes);
    }
    end += gap + size;
    at += size;
  }
  return OkStatus();
}

}  // namespace dws::slime
