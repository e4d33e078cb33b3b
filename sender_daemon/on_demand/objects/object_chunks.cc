// The digest is of whole words, so chunks are added to it as they come.
#include "sender_daemon/on_demand/objects/object_chunks.h"

#include <utility>

#include "common/base/bytes.h"
#include "common/proto_convert/convert.h"
#include "sender_daemon/on_demand/objects/object_store.h"

namespace dws {

Status ObjectChunks::Add(const v1::ObjectChunk& chunk) {
  if (std::exchange(first_, false)) {
    size_bytes_ = chunk.size_bytes();
    told_ = FromProto(chunk.digest());
    if (size_bytes_ > size_bytes_max_) {
      return MakeStatus(
          absl::StatusCode::kOutOfRange,
          fmt::format("an object has {} bytes, expected at most {}", size_bytes_, size_bytes_max_));
    }
  }
  const uint64_t size = chunk.data().size();
  if (size > limits::kObjectChunkBytes || size > size_bytes_ - received_ ||
      received_ % sizeof(uint64_t) != 0) {
    return DataLossError(
        "a chunk of {} bytes after {} of {}: expected at most {}, and multiples "
        "of {} before the last one",
        size, received_, size_bytes_, limits::kObjectChunkBytes, sizeof(uint64_t));
  }
  digest_ += DigestBytes(AsBytes(chunk.data()), received_ / sizeof(uint64_t));
  received_ += size;
  return OkStatus();
}

Status ObjectChunks::Finish() const {
  if (!first_ && received_ == size_bytes_ && digest_ == told_) return OkStatus();
  return DataLossError(
      "an object has arrived damaged: {} of {} bytes, expected digest {}, found {}; fetch it again",
      received_, size_bytes_, ToString(told_), ToString(digest_));
}

}  // namespace dws
