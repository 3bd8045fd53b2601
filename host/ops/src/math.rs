//! Elementary functions in a form that the compiler vectorises.

use super::simd::wide;

/// Returns `exp(x)` to within two units in the last place; underflows to zero below -87.3.
///
/// Cephes' `expf`: reduction by multiples of ln 2 and a polynomial of degree six.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting this rounds to the nearest integer without a branch.
    const ROUND: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.3, 88.0);
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, clamped));
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 0.5);
    let y = p.mul_add(r * r, r) + 1.0;
    let exponent = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let scaled = f32::from_bits((y.to_bits() as i32).wrapping_add(exponent << 23) as u32);
    if x < -87.3 { 0.0 } else { scaled }
}

/// Returns `ln(1 + x)` of `x` from 0 to 1, to within a few units in the last place.
///
/// The series of `2 artanh(s)` with `s = x / (2 + x)`, at most a third.
#[inline(always)]
pub(super) fn ln_1p(x: f32) -> f32 {
    let s = x / (2.0 + x);
    let square = s * s;
    let mut p = 1.0 / 15.0_f32;
    for denominator in [13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0_f32] {
        p = p.mul_add(square, 1.0 / denominator);
    }
    2.0 * s * p
}

/// Returns `1 / (1 + exp(-x))`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Returns the hyperbolic tangent to within a few units in the last place.
///
/// Cephes' `tanhf`: a polynomial near zero, where the quotient would cancel, and the exponential function beyond.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    const NEAR: f32 = 0.625;
    let z = x * x;
    let mut p = -5.704_988_7e-3_f32;
    p = p.mul_add(z, 2.063_908_8e-2);
    p = p.mul_add(z, -5.373_971_5e-2);
    p = p.mul_add(z, 1.333_144_2e-1);
    p = p.mul_add(z, -3.333_328e-1);
    let near = (p * z).mul_add(x, x);
    let beyond = (1.0 - 2.0 / (exp(2.0 * x.abs()) + 1.0)).copysign(x);
    if x.abs() < NEAR { near } else { beyond }
}

/// Returns the probability that a standard normal variable is below `x`, with a relative error below 3e-7.
///
/// The complementary error function in Chebyshev's form (Press et al., Numerical Recipes, 6.2).
#[inline(always)]
pub(super) fn normal_below(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / 0.5f32.mul_add(z, 1.0);
    let mut p = 0.170_872_77_f32;
    p = p.mul_add(t, -0.822_152_23);
    p = p.mul_add(t, 1.488_515_9);
    p = p.mul_add(t, -1.135_204);
    p = p.mul_add(t, 0.278_868_07);
    p = p.mul_add(t, -0.186_288_06);
    p = p.mul_add(t, 0.096_784_18);
    p = p.mul_add(t, 0.374_091_96);
    p = p.mul_add(t, 1.000_023_7);
    p = p.mul_add(t, -1.265_512_2);
    // Rounding a large square would add an error to the exponential function's argument, so the square's rounding error is added back.
    let square = z * z;
    let rest = z.mul_add(z, -square);
    let tail = 0.5 * t * exp(p - square) * (1.0 - rest);
    if x < 0.0 { tail } else { 1.0 - tail }
}

const LANES: usize = 16;

/// Reduces lanes pairwise by halves, which stays in vector registers. In a sequential sum, each addition would wait for the previous one.
#[inline(always)]
fn reduce_lanes(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Returns the sum of `f(x)` over a slice, in sixteen interleaved partial sums.
#[inline(always)]
pub(super) fn sum_by(xs: &[f32], f: impl Fn(f32) -> f32) -> f32 {
    let mut lanes = [0f32; LANES];
    let mut chunks = xs.chunks_exact(LANES);
    for c in &mut chunks {
        for (lane, &x) in lanes.iter_mut().zip(c) {
            *lane += f(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane += f(x);
    }
    reduce_lanes(lanes, |a, b| a + b)
}

/// Returns the sum of a slice in f64, in sixteen interleaved partial sums.
pub(super) fn sum_f64(xs: &[f32]) -> f64 {
    let mut lanes = [0f64; LANES];
    let (whole, rest) = xs.as_chunks::<LANES>();
    wide!(for c in whole {
        for lane in 0..LANES {
            lanes[lane] += f64::from(c[lane]);
        }
    });
    rest.iter().zip(&mut lanes).for_each(|(x, lane)| *lane += f64::from(*x));
    lanes.iter().sum()
}

/// Returns the sum of `a[i] * b[i]`.
#[inline(always)]
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    let (mut ca, mut cb) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (x, y) in (&mut ca).zip(&mut cb) {
        for l in 0..LANES {
            lanes[l] = x[l].mul_add(y[l], lanes[l]);
        }
    }
    for ((lane, x), y) in lanes.iter_mut().zip(ca.remainder()).zip(cb.remainder()) {
        *lane += x * y;
    }
    reduce_lanes(lanes, |a, b| a + b)
}

/// Returns the largest value, negative infinity for an empty slice.
#[inline(always)]
pub(super) fn max(xs: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut chunks = xs.chunks_exact(LANES);
    for c in &mut chunks {
        for (lane, &x) in lanes.iter_mut().zip(c) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = if x > *lane { x } else { *lane };
    }
    reduce_lanes(lanes, |a, b| if a > b { a } else { b })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_follows_the_library_function_over_its_whole_range() {
        let mut x = -90.0f32;
        while x < 88.0 {
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got - want).abs() <= 2.5e-7 * want + 2e-38, "exp({x}) = {got}, want {want}");
            x += 0.0137;
        }
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    }

    #[test]
    fn ln_1p_follows_the_library_function_up_to_one() {
        for i in 0..=100_000 {
            for x in [i as f32 / 1e5, i as f32 / 1e12] {
                let (got, want) = (f64::from(ln_1p(x)), f64::from(x).ln_1p());
                assert!((got - want).abs() <= 3e-7 * want, "ln_1p({x}) = {got}, want {want}");
            }
        }
    }

    #[test]
    fn tanh_follows_the_library_function_near_zero_and_beyond() {
        let mut x = -12.0f32;
        while x < 12.0 {
            for x in [x, x / 100.0, x / 1e4] {
                let (got, want) = (f64::from(tanh(x)), f64::from(x).tanh());
                assert!((got - want).abs() <= 3e-7 * want.abs(), "tanh({x}) = {got}, want {want}");
            }
            x += 0.0137;
        }
        assert_eq!([tanh(0.0), tanh(f32::INFINITY), tanh(-100.0)], [0.0, 1.0, -1.0]);
    }

    #[test]
    fn the_normal_distribution_is_that_of_its_integral() {
        // Simpson's rule over the density, from far below.
        let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        let (mut sum, mut x, step) = (0.0, -14.0f64, 0.001);
        while x < 5.0 {
            sum += step / 6.0 * (density(x) + 4.0 * density(x + step / 2.0) + density(x + step));
            x += step;
            let got = f64::from(normal_below(x as f32));
            // Where the argument itself is rounded, the error is multiplied by the tail's slope.
            let allowed = (8e-7 + x * x * 2e-7) * sum.max(1e-30);
            assert!(x < -9.0 || (got - sum).abs() <= allowed, "{x}: {got}, want {sum}");
        }
    }

    #[test]
    fn sums_and_maxima_cover_the_remainder() {
        let xs: Vec<f32> = (0..37).map(|i| i as f32 - 18.0).collect();
        assert_eq!(sum_by(&xs, |x| x), 0.0);
        assert_eq!(sum_f64(&xs[..20]), -170.0);
        assert_eq!(max(&xs), 18.0);
        assert_eq!(dot(&xs, &xs), xs.iter().map(|x| x * x).sum::<f32>());
    }
}
