// For cross_test.py:
//   slime_tool publish BEFORE AFTER FOLDER VERSION ENCODING CHECKSUM   makes a version
//   slime_tool apply LOCAL VERSION_FOLDER                              applies one
// BEFORE, AFTER and LOCAL are checkpoints. On an error prints it and exits with 1.
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/local/apply.h"
#include "common/formats/slime_delta/version_writer.h"

namespace dws::slime {
namespace {

Status Publish(const std::vector<std::string>& arguments) {
  const auto encoding = EncodingNamed(arguments[4]);
  const auto checksum = ChecksumFormatNamed(arguments[5]);
  if (!encoding.has_value() || !checksum.has_value()) return InvalidArgumentError("unknown names");
  DWS_ASSIGN_OR_RETURN(const auto before, safetensors::Checkpoint::Open(arguments[0]));
  DWS_ASSIGN_OR_RETURN(const auto after, safetensors::Checkpoint::Open(arguments[1]));
  PosixFileSystem files;
  DWS_ASSIGN_OR_RETURN(
      const auto writer,
      VersionWriter::Create(files, arguments[2],
                            {.version = std::strtoull(arguments[3].c_str(), nullptr, 10),
                             .encoding = *encoding,
                             .checksum = *checksum,
                             .shard_bytes_max = 2000}));
  for (const auto& tensor : after.tensors()) {
    DWS_RETURN_IF_ERROR(writer->Add(tensor.name, before.Find(tensor.name)->bytes, tensor.bytes));
  }
  return writer->Finish().status();
}

Status Apply(const std::vector<std::string>& arguments) {
  PosixFileSystem files;
  ThreadPool pool(1);
  DWS_ASSIGN_OR_RETURN(const auto local, LocalCheckpoint::Open(files, pool, arguments[0], {}));
  return local->Apply(arguments[1]).status();
}

Status Run(const std::string& command, const std::vector<std::string>& arguments) {
  if (command == "publish" && arguments.size() == 6) return Publish(arguments);
  if (command == "apply" && arguments.size() == 2) return Apply(arguments);
  return InvalidArgumentError("slime_tool publish|apply ...");
}

}  // namespace
}  // namespace dws::slime

int main(int argc, char** argv) {
  const std::vector<std::string> all(argv + 1, argv + argc);
  const dws::Status status = all.empty() ? dws::InvalidArgumentError("no command")
                                         : dws::slime::Run(all[0], {all.begin() + 1, all.end()});
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", dws::ToString(status));
  return 1;
}
