#include "tools/dwsctl/base/layout_file.h"

#include <google/protobuf/util/json_util.h>

#include <vector>

#include "common/proto_convert/convert.h"
#include "proto/delta.pb.h"
#include "tools/dwsctl/base/byte_file.h"

namespace dws::dwsctl {
namespace {

// A wrong file, such as a checkpoint, must not be loaded into memory.
constexpr uint64_t kLayoutFileBytesMax = uint64_t{256} << 20;

}  // namespace

Result<RankLayout> ReadLayoutFile(const std::string& path) {
  DWS_ASSIGN_OR_RETURN(const ByteFile file, ByteFile::Open(path));
  if (file.size_bytes() > kLayoutFileBytesMax) {
    return InvalidArgumentError("{}: {} bytes, at most {} are read", path, file.size_bytes(),
                                kLayoutFileBytesMax);
  }
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file.Read(0, file.size_bytes()));
  v1::RankLayout message;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, &message);
  if (!parsed.ok()) {
    return InvalidArgumentError("{}: no dws.v1.RankLayout in JSON: {}", path, parsed.ToString());
  }
  const auto layout = FromProto(message);
  if (!layout.ok()) return Annotate(layout.status(), path);
  return layout;
}

}  // namespace dws::dwsctl
