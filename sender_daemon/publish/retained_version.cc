#include "sender_daemon/publish/retained_version.h"

#include <algorithm>

namespace dws {

bool RetainedVersion::Has(const Digest& token) const {
  return token == manifest.state_token ||
         std::ranges::find(former_tokens, token) != former_tokens.end();
}

DeltaLink RetainedVersion::link() const {
  // Reads `object`, not `other_object`: its blocks are steps, which can be composed and undone.
  return {.manifest = &manifest,
          .frame = [this](const FrameEntry& entry, std::vector<std::byte>&) -> Result<ByteSpan> {
            return FrameBytes(object, header, entry);
          }};
}

}  // namespace dws
