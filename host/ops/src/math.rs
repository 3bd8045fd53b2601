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

/// Returns `1 / (1 + exp(-x))`.
#[inline(always)]
pub(super) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

const LANES: usize = 16;

/// Reduces lanes pairwise by halves, which stays in vector registers; a sequential sum would make each addition wait for the
/// previous one.
#[inline(always)]
fn together(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
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
    together(lanes, |a, b| a + b)
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
    together(lanes, |a, b| a + b)
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
    together(lanes, |a, b| if a > b { a } else { b })
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
    fn sums_and_maxima_cover_the_remainder() {
        let xs: Vec<f32> = (0..37).map(|i| i as f32 - 18.0).collect();
        assert_eq!(sum_by(&xs, |x| x), 0.0);
        assert_eq!(sum_f64(&xs[..20]), -170.0);
        assert_eq!(max(&xs), 18.0);
        assert_eq!(dot(&xs, &xs), xs.iter().map(|x| x * x).sum::<f32>());
    }
}
