#include "tiers/huge_pages.h"

#include "base/system_file.h"

namespace headrace::tiers {

HugePageFacts huge_page_facts(const std::string& root) {
  HugePageFacts facts;
  const std::string memory = root + "/sys/kernel/mm";
  // "always [madvise] never": the mode that is on stands in brackets.
  const std::string modes = first_line_of(memory + "/transparent_hugepage/enabled");
  const auto begin = modes.find('[');
  const auto end = modes.find(']');
  if (begin != std::string::npos && end != std::string::npos && end > begin) {
    facts.transparent = modes.substr(begin + 1, end - begin - 1);
  }
  const std::string folder = memory + "/hugepages/hugepages-2048kB";
  facts.explicit_pages = number_of(folder + "/nr_hugepages").value_or(0);
  facts.explicit_free = number_of(folder + "/free_hugepages").value_or(0);
  return facts;
}

}  // namespace headrace::tiers
