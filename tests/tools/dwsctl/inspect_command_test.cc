// `dwsctl inspect` and `dwsctl completion` as command lines; ledgers of every kind of damage.
#include <google/protobuf/util/json_util.h>

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/base/bytes.h"
#include "common/proto_convert/convert.h"
#include "proto/delta.pb.h"
#include "tests/fakes/temp_folder.h"
#include "tests/golden/golden_cases.h"
#include "tests/tools/dwsctl/fake_daemon.h"

namespace dws::dwsctl {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  REQUIRE(stream.is_open());
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::vector<nlohmann::json> Items(const Ran& ran) {
  std::vector<nlohmann::json> items;
  std::istringstream lines(ran.out);
  for (std::string line; std::getline(lines, line);) items.push_back(nlohmann::json::parse(line));
  return items;
}

constexpr char kSender[] = "tests/golden/ledger/sender_v1.ledger";
constexpr char kReceiver[] = "tests/golden/ledger/receiver_v1.ledger";

}  // namespace

TEST_CASE("inspect prints a receiver's ledger byte by byte", "[dwsctl]") {
  const Ran ran = RunLine(std::string("inspect --records 2 ") + kReceiver);
  CHECK(ran.code == ExitCode::kOk);
  CHECK(ran.error.empty());
  CHECK(ran.out ==
        R"(tests/golden/ledger/receiver_v1.ledger: receiver ledger, 360 bytes

head: at 0, 16 bytes
         0     8  magic                        DWSLEDGR
         8     4  format version               1
        12     4  kind                         2 (receiver)
  ... 3 older records, checked and not shown

record 3, CommitIntent: at 216, 80 bytes
       216     4  payload length               48
       220     4  type                         17
       224     8  head check                   93ef62e4311af71e
       232    16  digest of the payload        26c07770e289388ae8b930357b72dcd5
       248     8  stream incarnation           4
       256     8  stream id, high half         0000000000000001
       264     8  stream id, low half          0000000000000002
       272     8  base version                 0
       280     8  target version               3
       288     8  generation                   3

record 4, CommitAbandoned: at 296, 64 bytes
       296     4  payload length               32
       300     4  type                         19
       304     8  head check                   98300249eb4a6906
       312    16  digest of the payload        dfc1b1c731c3e16e8efb0084b57517ff
       328     8  stream incarnation           4
       336     8  stream id, high half         0000000000000001
       344     8  stream id, low half          0000000000000002
       352     8  version                      3

stream                 4:00000000000000010000000000000002
committed version      1 of stream 4:00000000000000010000000000000002
records                5
sound, as far as can be checked without the weights
)");
}

TEST_CASE("inspect tells a sender's ledger from a receiver's", "[dwsctl]") {
  const auto items = Items(RunLine(std::string("inspect --json ") + kSender));
  CHECK(items.front()["item"] == "file");
  CHECK(items.front()["kind"] == "sender ledger");
  CHECK(items.back()["item"] == "summary");
  CHECK(items.back()["problems"] == 0);
  CHECK(items.back()["facts"]["rank epoch"] == "2");
  CHECK(items.back()["facts"]["last version"] == "3");
}

TEST_CASE("inspect explains every byte of a ledger", "[dwsctl]") {
  for (const char* path : {kSender, kReceiver}) {
    std::vector<bool> seen(ReadFile(path).size());
    for (const auto& item : Items(RunLine(std::string("inspect --json ") + path))) {
      if (item["item"] != "field") continue;
      const auto begin = seen.begin() + item["offset"].get<std::ptrdiff_t>();
      std::fill_n(begin, item["size_bytes"].get<size_t>(), true);
    }
    CHECK(std::count(seen.begin(), seen.end(), false) == 0);
  }
}

TEST_CASE("a ledger cut off anywhere is reported as a torn append at its end", "[dwsctl]") {
  TempFolder folder;
  const std::string whole = ReadFile(kReceiver);
  const std::string path = folder.File("receiver.ledger");
  for (const size_t size : {8, 15, 17, 47, 48, 70, 359}) {
    WriteFile(path, whole.substr(0, size));
    const Ran ran = RunLine("inspect --json " + path);
    INFO(size);
    CHECK(ran.code == ExitCode::kDamaged);
    bool found = false;
    for (const auto& item : Items(ran)) {
      if (item["item"] != "problem") continue;
      CHECK(item["offset"] == size);
      found = item["message"].get<std::string>().find("cut off") != std::string::npos;
    }
    CHECK(found);
  }
  WriteFile(path, whole.substr(0, 359));
  CHECK(RunLine("inspect " + path).out.find("the daemon cuts it off") != std::string::npos);
}

TEST_CASE("a ledger damaged in the middle is read further after the damage", "[dwsctl]") {
  TempFolder folder;
  std::string bytes = ReadFile(kReceiver);
  bytes[100] = static_cast<char>(bytes[100] ^ 1);  // in the first commit intent
  WriteFile(folder.File("receiver.ledger"), bytes);
  const Ran ran = RunLine("inspect " + folder.File("receiver.ledger"));
  CHECK(ran.code == ExitCode::kDamaged);
  CHECK(RunLine("inspect --json " + folder.File("receiver.ledger"))
            .out.find("the daemon refuses this file: a valid one follows at offset") !=
        std::string::npos);
  CHECK(ran.out.find("record 3, CommitAbandoned") != std::string::npos);
}

TEST_CASE("every flipped bit of a ledger is reported", "[dwsctl]") {
  TempFolder folder;
  const std::string whole = ReadFile(kSender);
  const std::string path = folder.File("sender.ledger");
  for (size_t bit = 0; bit < whole.size() * 8; bit += 5) {
    std::string bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    WriteFile(path, bytes);
    INFO(bit);
    REQUIRE(RunLine("inspect --json " + path).code == ExitCode::kDamaged);
  }
}

TEST_CASE("inspect of a damaged object exits with 6 and prints valid JSON", "[dwsctl]") {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden/delta_v1")) {
    if (entry.path().extension() != ".dws") continue;
    const Ran ran = RunLine("inspect --json --all " + entry.path().string());
    INFO(entry.path().string());
    const auto items = Items(ran);
    REQUIRE(items.size() > 2);
    CHECK(items.back()["item"] == "summary");
    CHECK((ran.code == ExitCode::kDamaged) == (items.back()["problems"] > 0));
    ++files;
  }
  CHECK(files > 30);
}

TEST_CASE("with the layout inspect names tensors and checks positions", "[dwsctl]") {
  TempFolder folder;
  for (const golden::GoldenCase& golden : golden::MakeGoldenCases()) {
    if (golden.name != "position_outside_the_block" && golden.name != "bf16_sparse") continue;
    std::string json;
    REQUIRE(google::protobuf::util::MessageToJsonString(ToProto(golden.layout), &json).ok());
    WriteFile(folder.File("layout.json"), json);
    const Ran ran = RunLine("inspect --layout " + folder.File("layout.json") +
                            " tests/golden/delta_v1/" + golden.name + ".dws");
    INFO(ran.out);
    CHECK(ran.code == (golden.outcome == "OK" ? ExitCode::kOk : ExitCode::kDamaged));
    CHECK(ran.out.find(" of 'w'") != std::string::npos);
  }
  WriteFile(folder.File("layout.json"), "{");
  CHECK(RunLine("inspect --layout " + folder.File("layout.json") + " " + kSender).code ==
        ExitCode::kFile);
}

TEST_CASE("a file that is neither object nor ledger or cannot be read is an error", "[dwsctl]") {
  TempFolder folder;
  WriteFile(folder.File("empty"), "");
  WriteFile(folder.File("text"), "hello, this is a text file");
  CHECK(RunLine("inspect " + folder.File("empty")).code == ExitCode::kFile);
  CHECK(RunLine("inspect " + folder.File("text")).error.find("neither as a delta object") !=
        std::string::npos);
  CHECK(RunLine("inspect " + folder.File("absent")).code == ExitCode::kFile);
  CHECK(RunLine("inspect " + folder.path()).code == ExitCode::kFile);
  CHECK_THROWS_AS(RunLine("inspect"), CLI::ParseError);
}

TEST_CASE("completion has every command and only for bash", "[dwsctl]") {
  const std::string script = RunLine("completion bash").out;
  for (const char* command : {"status", "versions", "receivers", "watch", "verify", "resync",
                              "drain", "inspect", "completion"}) {
    CHECK(script.find(fmt::format("'{}')", command)) != std::string::npos);
  }
  CHECK(script.find('@') == std::string::npos);
  CHECK_THROWS_AS(RunLine("completion fish"), CLI::ParseError);
}

}  // namespace dws::dwsctl
