#include "halfstep/io/units.h"

#include <gtest/gtest.h>

#include "halfstep/core/error.h"

namespace halfstep::io {
namespace {

TEST(Units, ParsesSizes) {
  EXPECT_EQ(parse_bytes("0", "--x"), 0);
  EXPECT_EQ(parse_bytes("4096", "--x"), 4096);
  EXPECT_EQ(parse_bytes("4096B", "--x"), 4096);
  EXPECT_EQ(parse_bytes("4KiB", "--x"), 4096);
  EXPECT_EQ(parse_bytes("4 KiB", "--x"), 4096);
  EXPECT_EQ(parse_bytes("1.5GiB", "--x"), 1610612736);
  EXPECT_EQ(parse_bytes("80GB", "--x"), 80'000'000'000);
  EXPECT_EQ(parse_bytes("2TiB", "--x"), 2199023255552);
  EXPECT_EQ(parse_bytes("2e9", "--x"), 2'000'000'000);
  EXPECT_EQ(parse_bytes("9223372036854775807", "--x"), INT64_MAX);  // more digits than a double
}

TEST(Units, RefusesWhatIsNoSize) {
  for (const char* text :
       {"", "B", "KiB", "x", "4kib", "4 Kb", "-1", "-1KiB", "1.5", "1.5B", "0.1KiB",
        "9223372036854775808", "8388608TiB", "1e400", "nan", "inf", "0x10", "4KiBKiB", "4KiB "}) {
    EXPECT_THROW(parse_bytes(text, "--x"), UsageError) << text;
  }
  try {
    parse_bytes("4kib", "--ddp-bucket-size");
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "--ddp-bucket-size: got '4kib', expected a size such as 4096, 4KiB or 1.5GiB");
  }
}

TEST(Units, TellsASizeWithAUnitFromANumber) {
  EXPECT_TRUE(has_byte_unit("4KiB"));
  EXPECT_TRUE(has_byte_unit("4B"));
  EXPECT_FALSE(has_byte_unit("40000000"));
  EXPECT_FALSE(has_byte_unit("4e7"));
}

TEST(Units, ParsesNumbers) {
  EXPECT_EQ(parse_number("1e-4", "--lr"), 1e-4);
  EXPECT_EQ(parse_number("-0.5", "--lr"), -0.5);
  for (const char* text : {"", "1e", "1.0x", " 1", "nan", "inf", "1e999"}) {
    EXPECT_THROW(parse_number(text, "--lr"), UsageError) << text;
  }
}

TEST(Units, FormatsThreeDigits) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.00 KiB");
  EXPECT_EQ(format_bytes(10235), "10.0 KiB");  // 9.995 rounds up into two digits
  EXPECT_EQ(format_bytes(1023 * 1024), "1.00 MiB");
  EXPECT_EQ(format_bytes(int64_t{2093796557}), "1.95 GiB");
  EXPECT_EQ(format_bytes(int64_t{5000} << 40), "5000 TiB");
}

}  // namespace
}  // namespace halfstep::io
