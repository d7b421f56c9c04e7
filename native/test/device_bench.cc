// Measures the kernels and what two processes can do with them. Writes JSON to the file named last.
//
//   device_bench single OUT             one GPU
//   device_bench pair W R OUT           process on GPU W writes into the pool of one on GPU R
//   device_bench pair-registered W R OUT    the same with a pool that an engine allocated and registered
//   device_bench kill W R TIMES OUT     the writer is killed while it writes; when does its last byte land?
#include <cstring>

#include "device_bench_support.h"

namespace {

int number(const char* text) { return static_cast<int>(std::strtol(text, nullptr, 10)); }

int usage() {
  std::fprintf(stderr, "usage: device_bench single OUT | pair[-registered] W R OUT | kill W R TIMES OUT\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvt::bench;
  if (argc < 3) return usage();
  Records records;
  const std::string mode = argv[1];
  if (mode == "single" && argc == 3) {
    measure_single(&records);
  } else if ((mode == "pair" || mode == "pair-registered") && argc == 5) {
    measure_pair(number(argv[2]), number(argv[3]), mode == "pair-registered", &records);
  } else if (mode == "kill" && argc == 6) {
    measure_kills(number(argv[2]), number(argv[3]), number(argv[4]), &records);
  } else {
    return usage();
  }
  std::FILE* file = std::fopen(argv[argc - 1], "w");
  if (file == nullptr) {
    std::perror(argv[argc - 1]);
    return 1;
  }
  records.write(file);
  std::fclose(file);
  return 0;
}
