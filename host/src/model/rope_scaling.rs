//! Computes rotary frequencies and their scalings from both forms of `config.json`: `rope_theta` with `rope_scaling`, and
//! transformers 5's `rope_parameters`.

use super::json::Object;
use crate::config::printable;
use crate::ops::rope::Rotation;
use std::f64::consts::TAU;

/// How frequencies are scaled beyond the model's original training length.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All frequencies divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3: long wavelengths are divided, short ones kept, with a smooth transition between.
    Llama3 {
        /// Divisor of the long wavelengths.
        factor: f64,
        /// Wavelengths longer than `original / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths shorter than `original / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Number of positions in the original training.
        original: f64,
    },
}

/// Reads base and scaling from a `config.json`; the error names the field.
pub(super) fn resolve(config: &Object, head_dim: usize, default_theta: f64) -> Result<(f64, RopeScaling), String> {
    let (new, old) = (config.object("rope_parameters")?, config.object("rope_scaling")?);
    let (key, p) = match (new, old) {
        (Some(new), _) => ("rope_parameters", new),
        (None, Some(old)) => ("rope_scaling", old),
        (None, None) => ("rope_scaling", Object::default()),
    };
    let inside = |e: String| format!("{key}: {e}");
    let theta = p.number("rope_theta").map_err(inside)?.or(config.number("rope_theta")?).unwrap_or(default_theta);
    let need = |name: &str| {
        let value = p.number(name).map_err(inside)?;
        value.filter(|v| *v > 0.0).ok_or_else(|| format!("{key}: rope scaling needs a positive {name}"))
    };
    let kind = p.text("rope_type").map_err(inside)?.or(p.text("type").map_err(inside)?);
    let scaling = match kind {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: need("factor")? },
        Some("llama3") => {
            let (low_freq_factor, high_freq_factor) = (need("low_freq_factor")?, need("high_freq_factor")?);
            if low_freq_factor >= high_freq_factor {
                let detail = format!("low_freq_factor {low_freq_factor} must be less than high_freq_factor {high_freq_factor}");
                return Err(inside(detail));
            }
            let original = need("original_max_position_embeddings")?;
            RopeScaling::Llama3 { factor: need("factor")?, low_freq_factor, high_freq_factor, original }
        }
        Some(other) => {
            let other = printable(other, 80);
            return Err(inside(format!("rope type {other:?} is not supported; default, linear and llama3 are")));
        }
    };
    if theta <= 0.0 || !frequencies(theta, scaling, head_dim).iter().all(|f| f.is_finite()) {
        return Err(format!("rope_theta {theta} and the scaling in {key} don't give finite frequencies"));
    }
    Ok((theta, scaling))
}

/// Returns the frequency of each pair of dimensions, `[head_dim / 2]`.
fn frequencies(theta: f64, scaling: RopeScaling, head_dim: usize) -> Vec<f32> {
    let scaled = |f: f64| match scaling {
        RopeScaling::None => f,
        RopeScaling::Linear { factor } => f / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original } => {
            let wave = TAU / f;
            if wave < original / high_freq_factor {
                f
            } else if wave > original / low_freq_factor {
                f / factor
            } else {
                let smooth = (original / wave - low_freq_factor) / (high_freq_factor - low_freq_factor);
                (1.0 - smooth) * f / factor + smooth * f
            }
        }
    };
    (0..head_dim / 2).map(|i| scaled(theta.powf(-2.0 * i as f64 / head_dim as f64)) as f32).collect()
}

/// Returns the rotation tables of a decoder.
pub(super) fn rotation(theta: f64, scaling: RopeScaling, head_dim: usize, positions: usize) -> Rotation {
    Rotation::new(&frequencies(theta, scaling, head_dim), positions, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama3_keeps_short_waves_divides_long_ones_and_blends_between() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original: 32.0 };
        let (plain, scaled) = (frequencies(1e4, RopeScaling::None, 16), frequencies(1e4, scaling, 16));
        assert_eq!(plain[0], scaled[0], "a wave of 6.3 is shorter than 32 / 4");
        assert!((scaled[7] - plain[7] / 8.0).abs() < 1e-9, "the longest wave is divided by the factor");
        // The second wave, 19.87 positions, lies between 8 and 32.
        let smooth = (32.0 / (TAU / f64::from(plain[1])) - 1.0) / 3.0;
        let want = f64::from(plain[1]) * ((1.0 - smooth) / 8.0 + smooth);
        assert!((f64::from(scaled[1]) - want).abs() < 1e-6);
    }

    #[test]
    fn both_spellings_resolve_alike() {
        let parsed = |text: &str| resolve(&Object::parse(text).unwrap(), 16, 1e4);
        let old = parsed(r#"{"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}"#);
        let new = parsed(r#"{"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 2.0}}"#);
        assert_eq!(old.unwrap(), new.unwrap());
        assert!(parsed(r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8}}"#).unwrap_err().contains("low_freq_factor"));
        let equal = r#"{"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
            "original_max_position_embeddings": 32}}"#;
        assert!(parsed(equal).unwrap_err().contains("high_freq_factor"));
    }
}
