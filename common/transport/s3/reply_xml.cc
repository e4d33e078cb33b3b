// A document type is refused, and with it all entities but XML's own five: nothing grows.
#include "common/transport/s3/reply_xml.h"

#include <expat.h>

#include <algorithm>
#include <memory>

namespace dws::s3 {
namespace {

constexpr size_t kDepthMax = 8;
constexpr size_t kNameBytesMax = 64;
constexpr size_t kElementsMax = 20'000;

struct Reading {
  XML_Parser parser = nullptr;
  Elements elements = {};
  std::vector<std::string> path = {};
  std::string text = {};  // of the element that was opened last
  bool leaf = false;      // it has had no child
  bool refused = false;

  void Refuse() {
    refused = true;
    XML_StopParser(parser, XML_FALSE);
  }
  std::string Path() const {
    std::string joined;
    for (const std::string& part : path) joined += (joined.empty() ? "" : "/") + part;
    return joined;
  }
};

Reading& Of(void* user) { return *static_cast<Reading*>(user); }

void OnStart(void* user, const XML_Char* name, const XML_Char** /*attributes*/) {
  Reading& reading = Of(user);
  if (reading.path.size() == kDepthMax || reading.elements.size() == kElementsMax ||
      std::string_view(name).size() > kNameBytesMax) {
    return reading.Refuse();
  }
  reading.path.emplace_back(name);
  reading.text.clear();
  reading.leaf = true;
}

void OnEnd(void* user, const XML_Char* /*name*/) {
  Reading& reading = Of(user);
  if (reading.leaf) reading.elements.emplace_back(reading.Path(), std::move(reading.text));
  reading.text.clear();
  reading.leaf = false;
  reading.path.pop_back();
}

void OnText(void* user, const XML_Char* text, int size) {
  Of(user).text.append(text, static_cast<size_t>(size));
}

void OnDocumentType(void* user, const XML_Char*, const XML_Char*, const XML_Char*, int) {
  Of(user).Refuse();
}

struct Free {
  void operator()(XML_ParserStruct* parser) const { XML_ParserFree(parser); }
};

}  // namespace

Result<Elements> ReadXml(std::string_view text) {
  const std::unique_ptr<XML_ParserStruct, Free> parser(XML_ParserCreate(nullptr));
  if (parser == nullptr) return ResourceExhaustedError("no memory for an XML parser");
  Reading reading{.parser = parser.get()};
  XML_SetUserData(parser.get(), &reading);
  XML_SetElementHandler(parser.get(), OnStart, OnEnd);
  XML_SetCharacterDataHandler(parser.get(), OnText);
  XML_SetStartDoctypeDeclHandler(parser.get(), OnDocumentType);
  if (text.size() > kXmlBytesMax) return InvalidArgumentError("{} bytes of XML", text.size());
  if (XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE) !=
      XML_STATUS_OK) {
    return InvalidArgumentError(
        "the reply is not the XML of an S3-compatible store: {}",
        reading.refused ? "it has a document type, or is too deep, too long, or has long names"
                        : XML_ErrorString(XML_GetErrorCode(parser.get())));
  }
  return std::move(reading.elements);
}

std::string TextOf(const Elements& elements, std::string_view path) {
  const auto found =
      std::ranges::find(elements, path, [](const auto& element) { return element.first; });
  return found == elements.end() ? "" : found->second;
}

}  // namespace dws::s3
