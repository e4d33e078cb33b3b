// The findings of `inspect` in a file, item by item: text for people, one JSON object per line for
// programs. Nothing of a file is kept longer than it takes to report it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dws::dwsctl {

// The first item.
struct FileItem {
  std::string path;
  std::string kind;  // "delta object", "sender ledger", "receiver ledger"
  uint64_t size_bytes = 0;
};

// The items after it, up to the next section, are part of it.
struct SectionItem {
  std::string name;
  uint64_t offset = 0;  // in the file
  uint64_t size_bytes = 0;
  std::string note;
};

// One field of a header, record or manifest.
struct FieldItem {
  uint64_t offset = 0;  // in the file; with `in_manifest`, in the uncompressed manifest
  uint64_t size_bytes = 0;
  std::string name;
  std::string value;
  bool in_manifest = false;
};

// One block of the frame whose section it is in.
struct BlockItem {
  uint64_t block = 0;  // of the slice
  std::string mode;
  uint64_t nnz = 0;
  std::string parameters;
  uint64_t offset = 0;  // of its payload in the file
  uint64_t size_bytes = 0;
};

// Something that is left out to keep the output short.
struct OmissionItem {
  std::string what;
};

// A violation of the format. `offset` is its position in the file.
struct ProblemItem {
  uint64_t offset = 0;
  std::string message;
};

// The last item.
struct SummaryItem {
  std::vector<std::pair<std::string, std::string>> facts;
  uint64_t problems = 0;
};

using InspectItem = std::variant<FileItem, SectionItem, FieldItem, BlockItem, OmissionItem,
                                 ProblemItem, SummaryItem>;

// How many of a file's repeated parts are shown. All of them are checked.
struct InspectLimits {
  uint64_t slices = 16;   // of an object
  uint64_t frames = 4;    // of a slice
  uint64_t blocks = 8;    // of a frame
  uint64_t records = 64;  // of a ledger: the last ones
};

// Takes the items. False: the reader of the output has gone away.
using InspectSink = std::function<bool(const InspectItem&)>;

// Formats items, in their order, as lines of text. Not thread-safe.
class InspectText {
 public:
  explicit InspectText(size_t columns) : columns_(columns) {}
  std::string Format(const InspectItem& item);

 private:
  std::string operator()(const FileItem& file);
  std::string operator()(const SectionItem& section);
  std::string operator()(const FieldItem& field);
  std::string operator()(const BlockItem& block);
  std::string operator()(const OmissionItem& omission);
  std::string operator()(const ProblemItem& problem);
  std::string operator()(const SummaryItem& summary);

  const size_t columns_;
  bool in_blocks_ = false;
};

// One JSON object and a line end; the schema is in docs/dwsctl.md.
std::string FormatInspectJson(const InspectItem& item);

}  // namespace dws::dwsctl
