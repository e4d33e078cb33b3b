#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "common/delta/objects/object_header.h"
#include "common/ledger/ledger_bytes.h"
#include "tools/dwsctl/base/command.h"
#include "tools/dwsctl/base/layout_file.h"
#include "tools/dwsctl/inspect/inspect_ledger.h"
#include "tools/dwsctl/inspect/inspect_object.h"

namespace dws::dwsctl {
namespace {

struct InspectFlags {
  std::string file;
  std::string layout;
  InspectLimits limits;
  bool all = false;
  bool json = false;
};

enum class FileKind { kUnknown, kObject, kSenderLedger, kReceiverLedger };

// Recognizes a file if more than half of its magic is right, because `inspect` is often used on
// damaged files.
bool BeginsAlmostAs(ByteSpan bytes, ByteSpan magic) {
  const size_t count = std::min(bytes.size(), magic.size());
  size_t equal = 0;
  for (size_t i = 0; i < count; ++i) equal += bytes[i] == magic[i] ? 1 : 0;
  return equal > magic.size() / 2 || (bytes.size() < magic.size() && count > 3 && equal == count);
}

FileKind KindOf(ByteSpan head) {
  if (BeginsAlmostAs(head, ObjectMagic())) return FileKind::kObject;
  if (!BeginsAlmostAs(head, AsBytes(kLedgerMagic))) return FileKind::kUnknown;
  const bool receiver = head.size() >= kLedgerHeadBytes && LoadLe<uint32_t>(head.data() + 12) == 2;
  return receiver ? FileKind::kReceiverLedger : FileKind::kSenderLedger;
}

std::string ToString(FileKind kind) {
  switch (kind) {
    case FileKind::kUnknown:
      return "unknown";
    case FileKind::kObject:
      return "delta object";
    case FileKind::kSenderLedger:
      return "sender ledger";
    case FileKind::kReceiverLedger:
      return "receiver ledger";
  }
  return "unknown";
}

ExitCode FailFile(Console& console, const Status& error) {
  Fail(console, error);
  return ExitCode::kFile;
}

ExitCode RunInspect(const InspectFlags& flags, Console& console) {
  std::optional<RankLayout> layout;
  if (!flags.layout.empty()) {
    Result<RankLayout> read = ReadLayoutFile(flags.layout);
    if (!read.ok()) return FailFile(console, read.status());
    layout = *std::move(read);
  }
  const auto file = ByteFile::Open(flags.file);
  if (!file.ok()) return FailFile(console, file.status());
  const auto head = file->Read(0, kLedgerHeadBytes);
  if (!head.ok()) return FailFile(console, head.status());
  const FileKind kind = KindOf(*head);
  if (kind == FileKind::kUnknown) {
    return FailFile(console,
                    InvalidArgumentError("{}: {} bytes that begin neither as a delta object nor as "
                                         "a ledger",
                                         flags.file, file->size_bytes()));
  }

  InspectText text(console.columns());
  const InspectSink sink = [&](const InspectItem& item) {
    return console.Out(flags.json ? FormatInspectJson(item) : text.Format(item));
  };
  InspectLimits limits = flags.limits;
  if (flags.all) {
    constexpr uint64_t kAll = std::numeric_limits<uint64_t>::max();
    limits = {.slices = kAll, .frames = kAll, .blocks = kAll, .records = kAll};
  }
  sink(FileItem{.path = flags.file, .kind = ToString(kind), .size_bytes = file->size_bytes()});
  const auto problems =
      kind == FileKind::kObject
          ? InspectObject(*file, layout.has_value() ? &*layout : nullptr, limits, sink)
          : InspectLedger(*file, limits, sink);
  if (!problems.ok()) return FailFile(console, problems.status());
  return *problems > 0 ? ExitCode::kDamaged : ExitCode::kOk;
}

}  // namespace

void AddInspectCommand(CLI::App& app, Context& context) {
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* command = AddCommand(
      app, kFilesGroup, "inspect",
      "Shows a delta object or a ledger byte by byte.\n"
      "\n"
      "Every field with its offset, length and value, frames, blocks, and the state that the\n"
      "records of a ledger lead to. All checksums are compared and all blocks decoded, also those\n"
      "not shown.\n"
      "Damage is reported at its offset; the exit status is then 6.",
      {"dwsctl inspect /var/lib/dws/sender-0/sender.ledger",
       "dwsctl inspect --blocks 100 object.dws",
       "dwsctl inspect --json --all object.dws | jq 'select(.item == \"problem\")'"},
      flags->json);
  command->add_option("file", flags->file, "the file")->type_name(kFileValue)->required();
  command
      ->add_option("--layout", flags->layout,
                   "the rank's layout (dws.v1.RankLayout in JSON): checks what needs it, names "
                   "tensors")
      ->type_name(kFileValue);
  const auto count = [command](const char* name, uint64_t& value, const char* what) {
    command->add_option(name, value, what)->type_name("N")->capture_default_str();
  };
  count("--slices", flags->limits.slices, "slices of an object to show");
  count("--frames", flags->limits.frames, "frames of a slice to show");
  count("--blocks", flags->limits.blocks, "blocks of a frame to show");
  count("--records", flags->limits.records, "records of a ledger to show, the last ones");
  command->add_flag("--all", flags->all, "show everything");
  command->callback([flags, &context] { context.code = RunInspect(*flags, context.console); });
}

}  // namespace dws::dwsctl
