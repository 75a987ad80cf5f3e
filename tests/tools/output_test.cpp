// SPDX-License-Identifier: Apache-2.0
// Text for people: sizes, lists, tables, and text of files made safe.
#include "../../tools/sluice/output.h"

#include <gtest/gtest.h>

namespace sluice::tools {
namespace {

using Layers = std::vector<int>;

TEST(Output, Layers) {
  EXPECT_EQ(layers_text(Layers{0}), "layer 0");
  EXPECT_EQ(layers_text(Layers{0, 1}), "layers 0 and 1");
  EXPECT_EQ(layers_text(Layers{0, 1, 2, 3}), "layers 0 to 3");
  EXPECT_EQ(layers_text(Layers{0, 2, 5, 6, 7, 9}), "layers 0, 2, 5 to 7 and 9");
}

TEST(Output, Lists) {
  EXPECT_EQ(listed(std::vector<std::string>{}), "");
  EXPECT_EQ(listed(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(listed(std::vector<std::string>{"a", "b", "c"}), "a, b and c");
}

TEST(Output, Bytes) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.5 KiB");
  EXPECT_EQ(bytes_text(12339176), "11.8 MiB");
  EXPECT_EQ(bytes_text(std::int64_t{1} << 50), "1024.0 TiB");
}

TEST(Output, ControlCharactersAreShownAndTextIsKept) {
  EXPECT_EQ(printable("model.layers.0"), "model.layers.0");
  EXPECT_EQ(printable("\x1b[2J\n\x7f"), "\\x1b[2J\\x0a\\x7f");
  EXPECT_EQ(printable("gr\xc3\xb6\xc3\x9f"), "gr\xc3\xb6\xc3\x9f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\x9b"
            "31m")
      << "U+009B starts a terminal command too";
}

TEST(Output, TablesAlignNumbersRightAndTextLeft) {
  Table table({"name", "n"});
  table.add({"a", "10"});
  table.add({"longer", "5"});
  EXPECT_EQ(table.str(), "  name     n\n  a       10\n  longer   5\n");
}

}  // namespace
}  // namespace sluice::tools
