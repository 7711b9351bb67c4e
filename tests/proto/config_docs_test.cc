#include "proto/config_docs.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "proto/ds_config.pb.h"
#include "proto/schema.h"

namespace headrace::proto {
namespace {

/// docs/configuration.md is made from the schema. To write it anew, run this test with
/// HEADRACE_UPDATE_DOCS=1.
TEST(ConfigDocs, DocumentIsUpToDate) {
  const std::string path = std::string(HEADRACE_SOURCE_DIR) + "/docs/configuration.md";
  const std::string expected = configuration_document();
  if (const char* update = std::getenv("HEADRACE_UPDATE_DOCS");
      update != nullptr && std::string(update) == "1") {
    std::ofstream file(path, std::ios::binary);
    file << expected;
    ASSERT_TRUE(file.flush()) << path;
  }
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file) << path << ": run with HEADRACE_UPDATE_DOCS=1 to make it";
  std::ostringstream found;
  found << file.rdbuf();
  EXPECT_TRUE(found.str() == expected)
      << path << " is not what the schema says; run this test with HEADRACE_UPDATE_DOCS=1";
}

TEST(ConfigDocs, EveryKeyHasARow) {
  const std::string document = configuration_document();
  for_each_key(*DsConfig::descriptor(), "", [&](const std::string& path, const auto& field) {
    EXPECT_NE(document.find("| `" + field.name() + "` |"), std::string::npos) << path;
    EXPECT_NE(document.find(rule_of(field).doc()), std::string::npos) << path;
  });
}

}  // namespace
}  // namespace headrace::proto
