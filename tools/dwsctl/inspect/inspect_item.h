// What `inspect` finds in a file, one thing after the other: for people as text, for programs as a
// JSON object a line. Nothing of a file is held for longer than it takes to say it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dws::dwsctl {

// The first of all.
struct FileItem {
  std::string path;
  std::string kind;  // "delta object", "sender ledger", "receiver ledger"
  uint64_t size_bytes = 0;
};

// What follows, up to the next section, is part of this.
struct SectionItem {
  std::string name;
  uint64_t offset = 0;  // in the file
  uint64_t size_bytes = 0;
  std::string note;
};

struct FieldItem {
  uint64_t offset = 0;  // in the file, or `in_manifest` in the manifest before compression
  uint64_t size_bytes = 0;
  std::string name;
  std::string value;
  bool in_manifest = false;
};

// One block of the frame whose section this is.
struct BlockItem {
  uint64_t block = 0;  // of the slice
  std::string mode;
  uint64_t nnz = 0;
  std::string parameters;
  uint64_t offset = 0;  // of its payload in the file
  uint64_t size_bytes = 0;
};

// Something is left out for brevity.
struct OmissionItem {
  std::string what;
};

// Not as it must be. `offset` is where in the file.
struct ProblemItem {
  uint64_t offset = 0;
  std::string message;
};

// The last of all.
struct SummaryItem {
  std::vector<std::pair<std::string, std::string>> facts;
  uint64_t problems = 0;
};

using InspectItem = std::variant<FileItem, SectionItem, FieldItem, BlockItem, OmissionItem,
                                 ProblemItem, SummaryItem>;

// How much of what a file repeats is shown; all of it is checked.
struct InspectLimits {
  uint64_t slices = 16;   // of an object
  uint64_t frames = 4;    // of a slice
  uint64_t blocks = 8;    // of a frame
  uint64_t records = 64;  // of a ledger: the last ones
};

// False: nobody reads any more.
using InspectSink = std::function<bool(const InspectItem&)>;

// Text that ends its lines, made of items in their order.
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
