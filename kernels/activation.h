#pragma once

// Functions that are applied to each element after a matrix product.

namespace quire::kernels {

enum class Activation {
  kNone,
  kGelu,      // y * Phi(y) with the standard normal distribution function Phi (arXiv:1606.08415)
  kGeluTanh,  // y * (1 + tanh(sqrt(2 / pi) * (y + 0.044715 * y^3))) / 2; approximates kGelu
  // Gated activations combine two outputs of the matrix product, y_gate and y_up. The weight holds
  // the rows of the gate projection, then the rows of the up projection.
  kSiluMul,      // y_gate / (1 + e^-y_gate) * y_up  (SwiGLU, arXiv:2002.05202)
  kGeluTanhMul,  // kGeluTanh(y_gate) * y_up  (GeGLU)
  // g / (1 + e^(-1.702 g)) * (u + 1), with g = min(y_gate, limit) and u = y_up clamped to
  // [-limit, limit]  (gpt-oss). The limit is an argument of the op.
  kClampedSiluMul,
};

inline constexpr float kClampedSiluAlpha = 1.702f;

constexpr bool IsGated(Activation activation) { return activation >= Activation::kSiluMul; }

}  // namespace quire::kernels
