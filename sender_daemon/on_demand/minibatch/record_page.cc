// A half: its number, the size of the message, their digest, the message. Numbers count from 1.
#include "sender_daemon/on_demand/minibatch/record_page.h"

#include <cstring>
#include <string>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/model/digest/digest.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {
namespace {

constexpr uint64_t kHalfBytes = limits::kRecordPageBytes / 2;
constexpr uint64_t kHeadBytes = 32;

Digest DigestOf(uint64_t sequence, ByteSpan message) {
  return MixWord(0, sequence) + MixWord(1, message.size()) + DigestBytes(message, 2);
}

}  // namespace

MutableByteSpan RecordPage::Half(uint64_t sequence) const {
  return page_.subspan(sequence % 2 * kHalfBytes, kHalfBytes);
}

std::optional<v1::TrainMessage> RecordPage::Load() {
  std::optional<v1::TrainMessage> newest;
  for (const uint64_t half : {0, 1}) {
    // The rank may write there meanwhile: a copy is checked and used.
    std::string copy(kHalfBytes, '\0');
    std::memcpy(copy.data(), Half(half).data(), kHalfBytes);
    const ByteSpan bytes = AsBytes(copy);
    const auto sequence = LoadLe<uint64_t>(bytes.data());
    const auto size = LoadLe<uint64_t>(bytes.data() + 8);
    if (sequence <= sequence_ || size > kHalfBytes - kHeadBytes) continue;
    const ByteSpan message = bytes.subspan(kHeadBytes, size);
    const Digest digest{.lane0 = LoadLe<uint64_t>(bytes.data() + 16),
                        .lane1 = LoadLe<uint64_t>(bytes.data() + 24)};
    v1::TrainMessage read;
    if (digest != DigestOf(sequence, message) ||
        !read.ParseFromArray(message.data(), static_cast<int>(message.size()))) {
      continue;
    }
    sequence_ = sequence;
    newest = std::move(read);
  }
  return newest;
}

void RecordPage::Save(const v1::TrainMessage& message) {
  const std::string text = message.SerializeAsString();
  DWS_CHECK(text.size() <= kHalfBytes - kHeadBytes);
  ++sequence_;
  std::byte* const half = Half(sequence_).data();
  const Digest digest = DigestOf(sequence_, AsBytes(text));
  std::memcpy(half + kHeadBytes, text.data(), text.size());
  DWS_KILLPOINT("sender.train.inside_record");
  StoreLe<uint64_t>(half + 8, text.size());
  StoreLe<uint64_t>(half + 16, digest.lane0);
  StoreLe<uint64_t>(half + 24, digest.lane1);
  StoreLe<uint64_t>(half, sequence_);
}

}  // namespace dws
