#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "tests/support/temporary_folder.h"
#include "tests/tiers/fake_io.h"
#include "tests/tiers/support.h"
#include "tiers/catalog.h"
#include "tiers/extent_store.h"

namespace headrace::tiers::test {

/// An extent store over a FakeIo in a temporary folder.
class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    options_.run_id = "test";
    options_.disk_budget = Bytes(int64_t{1} << 30);
    options_.growth_step = Bytes(4 << 20);
  }

  void make(int paths) {
    options_.paths.clear();
    for (int i = 0; i < paths; ++i) {
      options_.paths.push_back(folder_ / ("disk" + std::to_string(i)));
    }
    store_ = ExtentStore::create(options_, io_);
  }

  void write(const std::string& name, int64_t size, uint64_t seed, bool persistent = true) {
    const Buffer buffer(size);
    fill_pattern(buffer.bytes(), seed);
    store_->write(name, buffer.bytes(), persistent, aio::IoClass::write_back).wait();
  }

  void read(const std::string& name, const Buffer& target) {
    store_->read(name, target.bytes(), aio::IoClass::demand).wait();
  }

  void expect_value(const std::string& name, int64_t size, uint64_t seed) {
    const Buffer buffer(size);
    read(name, buffer);
    EXPECT_TRUE(has_pattern(buffer.bytes(), seed)) << name;
  }

  std::vector<Damage> verify() {
    return store_->verify([](Bytes /*done*/, Bytes /*total*/) {});
  }

  /// Closes the store, as far as that has not been done, and opens it again.
  void reopen() {
    store_.reset();
    store_ = ExtentStore::open(options_, io_);
  }

  CatalogContents catalog() const {
    return read_catalog(options_.paths[0] + "/headrace-test/catalog");
  }

  /// Changes one byte of an extent in its file; returns the file's path.
  static std::string flip_byte(const CatalogContents& contents, const Extent& extent,
                               int64_t position) {
    const std::string path =
        contents.store.directories.at(extent.path) + "/data-" + std::to_string(extent.file);
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(extent.offset + position);
    const char byte = static_cast<char>(file.get());
    file.seekp(extent.offset + position);
    file.put(static_cast<char>(byte ^ 0x10));
    EXPECT_TRUE(file.good()) << path;
    return path;
  }

  headrace::test::TemporaryFolder folder_;
  std::shared_ptr<FakeIo> io_ = std::make_shared<FakeIo>();
  ExtentStoreOptions options_;
  std::unique_ptr<ExtentStore> store_;
};

}  // namespace headrace::tiers::test
