// An extension that times its own C++ code into the recorder of the Python process.
#include <pybind11/pybind11.h>
#include <stagespan/python.h>

#include <cstddef>
#include <thread>
#include <vector>

namespace {

using Matrix = std::vector<double>;

Matrix fill(std::size_t n, double value) {
  STAGESPAN_SCOPE("fill");
  return Matrix(n * n, value);
}

// The scope is timed from this line to the closing brace; "fill" becomes its child.
double multiply(std::size_t n) {
  STAGESPAN_SCOPE("multiply");
  const Matrix a = fill(n, 0.5);
  const Matrix b = fill(n, 2.0);
  Matrix c(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t j = 0; j < n; ++j) c[i * n + j] += a[i * n + k] * b[k * n + j];
  double trace = 0.0;
  for (std::size_t i = 0; i < n; ++i) trace += c[i * n + i];
  return trace;
}

// A thread that Python did not create, without the GIL, is timed too.
double multiply_on_thread(std::size_t n) {
  pybind11::gil_scoped_release without_gil;
  double trace = 0.0;
  std::thread worker([&] {
    STAGESPAN_SCOPE("worker");
    trace = multiply(n);
  });
  worker.join();
  return trace;
}

}  // namespace

PYBIND11_MODULE(cpp_stages, module) {
  // Finds the recorder; must run before the first timed scope.
  stagespan::attach();
  module.def("multiply", &multiply, "Multiply two n x n matrices; returns the trace.");
  module.def("multiply_on_thread", &multiply_on_thread, "The same on a thread of its own.");
}
