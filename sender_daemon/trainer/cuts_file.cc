// A line with a digest, then a v1.Refine.
#include "sender_daemon/trainer/cuts_file.h"

#include "common/base/log/log.h"
#include "common/model/digest/digest.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "proto/sync.pb.h"

namespace dws {
namespace {

std::string HeadOf(std::string_view message) {
  return fmt::format("DWSCUTS 1 {}\n", ToString(DigestBytes(AsBytes(message), 0)));
}

}  // namespace

Status CutsFile::Save(const StreamId& stream, const CutWishes& cuts) {
  v1::Refine message;
  *message.mutable_stream() = ToProto(stream);
  ToProto(cuts, *message.mutable_tensors());
  const std::string body = message.SerializeAsString();
  return files_.ReplaceFile(path_, AsBytes(HeadOf(body) + body));
}

CutWishes CutsFile::Load(const StreamId& stream) const {
  const auto read = files_.ReadFile(path_, static_cast<uint64_t>(limits::kGrpcMessageBytesMax));
  if (absl::IsNotFound(read.status())) return {};
  Status damage = read.status();
  if (read.ok()) {
    const std::string_view text = AsText(*read);
    const size_t head = HeadOf("").size();
    v1::Refine message;
    const bool whole =
        text.size() >= head && text.substr(0, head) == HeadOf(text.substr(head)) &&
        message.ParseFromArray(text.data() + head, static_cast<int>(text.size() - head));
    if (whole && AsStands(message.stream()) != stream) return {};
    Result<CutWishes> cuts =
        whole ? FromProto(message.tensors()) : DataLossError("its digest is wrong");
    if (cuts.ok()) return *std::move(cuts);
    damage = cuts.status();
  }
  LogWarning("cuts_lost", {{"file", path_}, {"reason", Message(damage)}});
  return {};
}

}  // namespace dws
