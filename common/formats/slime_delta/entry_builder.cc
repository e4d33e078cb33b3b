// A piece is processed in windows that stay in the cache while they are compared, hashed and
// compressed.
#include "common/formats/slime_delta/entry_builder.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/formats/slime_delta/windows.h"

namespace dws::slime {

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
    changed_ |= Xor(before, after, window);
    xor_->Add(window);
    return;
  }
  const bool joined = encoding_ == Encoding::kRuns;
  for (const ByteRun& run : ChangedRuns(before, after, joined ? kRunJoinBytes : 0)) {
    changed_ = true;
    const ByteSpan bytes = after.subspan(run.offset, run.size_bytes);
    if (joined) {
      runs_.Add(added_ + run.offset, bytes);
    } else {
      overwrite_.Add(added_ + run.offset, bytes);
    }
  }
}

Result<std::optional<EntryBuilder::Entry>> EntryBuilder::Finish(bool unchanged_too) {
  DWS_CHECK(added_ == tensor_bytes_);
  if (!changed_ && (!unchanged_too || tensor_bytes_ == 0)) return std::optional<Entry>();
  Entry entry{.digest = digest_.Text(), .bytes = {}};
  if (encoding_ == Encoding::kXor) {
    entry.bytes = xor_->Finish();
  } else if (encoding_ == Encoding::kRuns) {
    entry.bytes = CompressEntry(runs_.Take());
  } else {
    DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> payload, overwrite_.Take());
    entry.bytes = CompressEntry(payload);
  }
  return std::optional<Entry>(std::move(entry));
}

}  // namespace dws::slime
