// One update of AdamW over a parameter (see ops/adamw.rs), in the order of operations of the CPU's.
#include "common.cuh"

// `rounded`, unless it is null, becomes the parameter in bf16.
extern "C" __global__ void adamw(float *param, const float *grad, float *m, float *v, bf16 *rounded, float grad_scale, float b1,
                                 float b2, float eps, float decay, float step_size, float root_bias2, size_t n) {
    for (size_t i = thread_index(); i < n; i += thread_count()) {
        const float g = grad[i] * grad_scale;
        const float first = m[i] + (1.0f - b1) * (g - m[i]);
        const float second = b2 * v[i] + (1.0f - b2) * g * g;
        const float p = param[i] * decay - step_size * first / (sqrtf(second) / root_bias2 + eps);
        m[i] = first, v[i] = second, param[i] = p;
        if (rounded) rounded[i] = from_float<bf16>(p);
    }
}
