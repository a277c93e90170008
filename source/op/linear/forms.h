// How the matrices of a product lie in memory.
#pragma once

namespace mdops {

// Row by row: C (rows, columns) is a sum over `depth`.
enum class ProductForm {
  plain,         // A (rows, depth) B (depth, columns)
  b_transposed,  // B is (columns, depth)
  a_transposed,  // A is (depth, rows)
};

// f of the form as a template argument.
template <class F>
void with_form(ProductForm form, const F& f) {
  switch (form) {
    case ProductForm::plain:
      return f.template operator()<ProductForm::plain>();
    case ProductForm::b_transposed:
      return f.template operator()<ProductForm::b_transposed>();
    case ProductForm::a_transposed:
      return f.template operator()<ProductForm::a_transposed>();
  }
}

}  // namespace mdops
