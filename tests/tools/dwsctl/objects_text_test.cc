#include <catch2/catch.hpp>
#include <string>

#include "tools/dwsctl/text/status_text.h"

namespace dws::dwsctl {

TEST_CASE("the status of a sender whose rank puts objects has them, and the round", "[dwsctl]") {
  v1::StatusReply reply;
  v1::ObjectsStatus& objects = *reply.mutable_sender()->mutable_on_demand()->mutable_objects();
  objects.set_bytes_max(uint64_t{4} << 30);
  CHECK(FormatStatus(reply, 200).find("objects") == std::string::npos);
  objects.set_attached(true);
  CHECK(FormatStatus(reply, 200)
            .find("  objects   0, 0 B of 4.0 GiB; sent 0 B, received 0 B; 0 puts "
                  "refused\n") != std::string::npos);
  CHECK(FormatStatus(reply, 200).find("  round ") == std::string::npos);
  objects.set_objects(3);
  objects.set_held_bytes(12 << 20);
  objects.set_put_bytes(13 << 20);
  objects.set_sent_bytes(5 << 20);
  objects.set_received_bytes(6 << 20);
  objects.set_rounds(5);
  objects.set_last_put("'ready' number 17");
  objects.set_last_put_seconds(3);
  CHECK(FormatStatus(reply, 200)
            .find("  objects   3, 12.0 MiB of 4.0 GiB; sent 5.0 MiB, received "
                  "6.0 MiB; 0 puts refused\n"
                  "  round     5 behind it; put 'ready' number 17 3.0 s ago\n") !=
        std::string::npos);
  objects.set_attached(false);
  objects.set_waits_for("'decided' number 17 of rank 0");
  objects.set_wait_seconds(2);
  objects.set_waits(2);
  CHECK(FormatStatus(reply, 300)
            .find("ago, and its process is gone; has waited 2.0 s for 'decided' number 17 of rank "
                  "0; 2 calls of "
                  "other ranks wait for what it puts next\n") != std::string::npos);
}

}  // namespace dws::dwsctl
