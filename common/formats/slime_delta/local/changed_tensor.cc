// The old bytes are mapped, and released once a window is done. The new ones are made in a buffer
// that stays in the cache: an xor is decompressed into it, other changes are applied to a copy.
#include "common/formats/slime_delta/local/changed_tensor.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/formats/slime_delta/change_list.h"
#include "common/formats/slime_delta/entry_stream.h"
#include "common/formats/slime_delta/local/mapped_windows.h"

namespace dws::slime {
namespace {

using safetensors::Checkpoint;
using safetensors::CheckpointTensor;

// Makes a window's new bytes of its old ones; appends the runs that differ.
using MakeWindow = std::function<Status(uint64_t offset, ByteSpan before, MutableByteSpan after,
                                        std::vector<ByteRun>& runs)>;

Status ForEach(const Checkpoint& checkpoint, const CheckpointTensor& tensor, const MakeWindow& make,
               const std::function<void(const ChangedWindow&)>& fn) {
  std::vector<ByteRun> runs;
  std::vector<std::byte> buffer(std::min(tensor.size_bytes, kWindowBytes));
  return ForEachMappedWindow(checkpoint, tensor, [&](uint64_t offset, uint64_t size) -> Status {
    const MutableByteSpan after = MutableByteSpan(buffer).first(size);
    runs.clear();
    DWS_RETURN_IF_ERROR(make(offset, tensor.bytes.subspan(offset, size), after, runs));
    fn({.offset = offset, .after = after, .runs = runs});
    return OkStatus();
  });
}

}  // namespace

Status ForEachChangedWindow(const VersionIndex& version, const EntrySource& entry,
                            const Checkpoint& checkpoint, const CheckpointTensor& before,
                            const std::function<void(const ChangedWindow&)>& fn) {
  if (!version.delta.has_value()) {
    return ForEach(
        checkpoint, before,
        [&](uint64_t offset, ByteSpan old, MutableByteSpan after, auto& runs) -> Status {
          DWS_RETURN_IF_ERROR(entry.read(offset, after));
          runs = ChangedRuns(old, after, kRunJoinBytes);
          return OkStatus();
        },
        fn);
  }
  const Encoding encoding = version.delta->encoding;
  DWS_ASSIGN_OR_RETURN(EntryStream stream, EntryStream::Open(encoding, entry, before.size_bytes));
  if (encoding == Encoding::kXor) {
    const auto make = [&](uint64_t, ByteSpan old, MutableByteSpan after, auto& runs) -> Status {
      DWS_RETURN_IF_ERROR(stream.Read(after));
      XorWindow(old, after, runs);
      return OkStatus();
    };
    DWS_RETURN_IF_ERROR(ForEach(checkpoint, before, make, fn));
    return stream.Finish();
  }
  std::vector<std::byte> payload(stream.payload_bytes());
  DWS_RETURN_IF_ERROR(stream.Read(payload));
  DWS_RETURN_IF_ERROR(stream.Finish());
  DWS_ASSIGN_OR_RETURN(ChangeList changes,
                       ChangeList::Make(encoding, std::move(payload), before.size_bytes));
  const auto make = [&](uint64_t, ByteSpan old, MutableByteSpan after, auto& runs) {
    std::memcpy(after.data(), old.data(), after.size());
    changes.Apply(after, &runs);
    return OkStatus();
  };
  return ForEach(checkpoint, before, make, fn);
}

}  // namespace dws::slime
