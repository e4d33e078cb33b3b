#include "sender_daemon/publish/retained_version.h"

namespace dws {

DeltaLink RetainedVersion::link() const {
  // Reads `object`, not `other_object`: its blocks are steps, which can be composed and undone.
  return {.manifest = &manifest,
          .frame = [this](const FrameEntry& entry, std::vector<std::byte>&) -> Result<ByteSpan> {
            return FrameBytes(object, header, entry);
          }};
}

}  // namespace dws
