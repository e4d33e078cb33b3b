// A piece is taken in windows that stay in the cache while they are compared, hashed and compressed.
#include "common/formats/slime_delta/entry_builder.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/formats/slime_delta/windows.h"

namespace dws::slime {
namespace {

void AppendLe32(uint64_t number, std::vector<std::byte>& to) {
  const size_t end = to.size();
  to.resize(end + sizeof(uint32_t));
  StoreLe(to.data() + end, static_cast<uint32_t>(number));
}

}  // namespace

Result<EntryBuilder> EntryBuilder::Create(Encoding encoding, ChecksumFormat checksum,
                                          uint64_t tensor_bytes) {
  DWS_RETURN_IF_ERROR(CheckEncodable(encoding, tensor_bytes));
  return EntryBuilder(encoding, checksum, tensor_bytes);
}

EntryBuilder::EntryBuilder(Encoding encoding, ChecksumFormat checksum, uint64_t tensor_bytes)
    : encoding_(encoding), tensor_bytes_(tensor_bytes), digest_(checksum) {
  if (encoding == Encoding::kXor) xor_.emplace(tensor_bytes, kEntryLevel);
}

void EntryBuilder::Add(ByteSpan before, ByteSpan after) {
  DWS_CHECK(before.size() == after.size() && after.size() <= tensor_bytes_ - added_);
  for (uint64_t offset = 0; offset < after.size(); offset += kWindowBytes) {
    const uint64_t size = std::min(kWindowBytes, after.size() - offset);
    AddWindow(before.subspan(offset, size), after.subspan(offset, size));
    added_ += size;
  }
}

void EntryBuilder::AddWindow(ByteSpan before, ByteSpan after) {
  digest_.Update(after);
  if (encoding_ == Encoding::kXor) {
    difference_.resize(std::max<size_t>(difference_.size(), after.size()));
    const MutableByteSpan window = MutableByteSpan(difference_).first(after.size());
    changed_ |= XorOf(before, after, window);
    xor_->Add(window);
    return;
  }
  const bool joined = encoding_ == Encoding::kRuns;
  for (const ByteRun& run : ChangedRuns(before, after, joined ? kRunJoinBytes : 0)) {
    changed_ = true;
    const ByteSpan bytes = after.subspan(run.offset, run.size_bytes);
    if (joined) {
      runs_.Add(added_ + run.offset, bytes);
      continue;
    }
    for (uint64_t i = 0; i < bytes.size(); ++i) AppendLe32(added_ + run.offset + i, positions_);
    values_.insert(values_.end(), bytes.begin(), bytes.end());
  }
}

Result<std::optional<EntryBuilder::Entry>> EntryBuilder::Finish() {
  DWS_CHECK(added_ == tensor_bytes_);
  if (!changed_) return std::optional<Entry>();
  Entry entry{.digest = digest_.Text(), .bytes = {}};
  if (encoding_ == Encoding::kXor) {
    entry.bytes = xor_->Finish();
  } else if (encoding_ == Encoding::kRuns) {
    entry.bytes = CompressEntry(runs_.Take());
  } else {
    DWS_ASSIGN_OR_RETURN(entry.bytes, FinishOverwrite());
  }
  return std::optional<Entry>(std::move(entry));
}

Result<std::vector<std::byte>> EntryBuilder::FinishOverwrite() {
  if (values_.size() > std::numeric_limits<uint32_t>::max()) {
    return InvalidArgumentError("overwrite cannot carry {} changed bytes: use xor", values_.size());
  }
  std::vector<std::byte> count;
  AppendLe32(values_.size(), count);
  EntryCompressor compressor(count.size() + positions_.size() + values_.size(), kEntryLevel);
  compressor.Add(count);
  compressor.Add(positions_);
  compressor.Add(values_);
  return compressor.Finish();
}

}  // namespace dws::slime
