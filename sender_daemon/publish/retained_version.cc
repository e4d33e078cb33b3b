#include "sender_daemon/publish/retained_version.h"

namespace dws {

DeltaLink RetainedVersion::link() const {
  return {.manifest = &manifest,
          .frame = [this](const FrameEntry& entry, std::vector<std::byte>&) -> Result<ByteSpan> {
            return FrameBytes(object, header, entry);
          }};
}

}  // namespace dws
