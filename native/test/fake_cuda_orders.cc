#include "fake_cuda_orders.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

namespace kvt::test {

FakeCudaOrders FakeCudaOrders::read() {
  FakeCudaOrders orders;
  const char* const path = std::getenv("KVT_FAKE_CUDA");
  if (path == nullptr) return orders;
  std::ostringstream text;
  text << '\n' << std::ifstream(path).rdbuf() << '\n';
  orders.text_ = text.str();
  return orders;
}

std::optional<std::int64_t> FakeCudaOrders::number(const std::string& order) const {
  const std::string key = "\n" + order + " ";
  const std::size_t at = text_.find(key);
  if (at == std::string::npos) return std::nullopt;
  return std::strtoll(text_.c_str() + at + key.size(), nullptr, 10);
}

}  // namespace kvt::test
